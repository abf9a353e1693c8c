#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "costmodel/format/graph_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/prediction/predict.h"
#include "tests/support/chains.h"
#include "tests/support/run_command.h"

// stagecraft init and auto as a user runs them. plan, predict, compare and report are the real programs; profile, links
// and run, which need LibTorch, are scripts that copy documents and note that they were called.

namespace stagecraft {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::Outcome;

constexpr const char* kProject =
    "[model]\nname = \"mlp\"\n[cluster]\ndevices = 2\n[plan]\nmicrobatches = 4\nstages = 2\nstrategy = \"uniform\"\n"
    "[training]\nlearning_rate = 0.1\n[run]\nsteps = 4\n[output]\nfolder = \"out\"\n";

class Auto : public ::testing::Test {
 protected:
  Auto() {
    namespace fs = std::filesystem;
    Graph graph = testing::chain_graph({1, 1, 1}, {2, 2, 2}, Bytes(500));
    graph.microbatch_samples = 2;
    const Topology topology = testing::flat_topology(2, 1000);
    folder_.write("g.json", format::graph_json(graph));
    folder_.write("t.json", format::topology_json(topology));
    fs::create_directory(folder_.path() / "bin");
    // Of each verb: note the call, then do what the files named like it say, then copy the document to -o.
    const auto stand_in = [&](const std::string& verb, const std::string& document) {
      const std::string path = "bin/stagecraft-" + verb;
      folder_.write(path, "#!/bin/bash\necho \"" + verb + " $*\" >> calls.txt\n[ ! -e do-" + verb + " ] || . ./do-" +
                              verb + "\nwhile [ $# -gt 1 ]; do\n  [ \"$1\" != -o ] || cp " + document +
                              " \"$2\"\n  [ \"$1\" != --checkpoint ] || mkdir -p \"$2\"\n  shift\ndone\n");
      fs::permissions(folder_.path() / path, fs::perms::owner_all);
    };
    stand_in("profile", "g.json");
    stand_in("links", "t.json");
    stand_in("run", "m.json");
    stand_in("evaluate", "e.json");
    for (const char* verb : {"plan", "predict", "compare", "report"}) {
      const std::string path = std::string("bin/stagecraft-") + verb;
      folder_.write(path, "#!/bin/bash\necho \"" + std::string(verb) + " $*\" >> calls.txt\n[ ! -e do-" + verb +
                              " ] || . ./do-" + verb + "\nexec '" + program_folder() + "/stagecraft-" + verb +
                              "' \"$@\"\n");
      fs::permissions(folder_.path() / path, fs::perms::owner_all);
    }
    folder_.write("stagecraft.toml", kProject);

    // What run measures: twice the predicted times.
    const Plan plan = make_plan(graph, topology, {{0, 0, 1}, {1, 1}}, {.microbatches = 4});
    const Prediction prediction = std::get<Prediction>(predict(graph, topology, BoundPlan(plan)));
    Measurement measured;
    measured.model = "mlp";
    measured.schedule = "1f1b";
    measured.microbatches = 4;
    measured.microbatch_samples = 2;
    measured.losses = {1};
    measured.timeline = prediction.timeline;
    for (Span& span : measured.timeline.spans) span.start = span.start * 2, span.end = span.end * 2;
    for (StepTime& step : measured.timeline.steps) step.start = step.start * 2, step.end = step.end * 2;
    folder_.write("m.json", format::measurement_json(measured));
  }

  Outcome auto_(const std::string& arguments = "") const {
    return folder_.run("STAGECRAFT_BIN=bin stagecraft-auto " + arguments);
  }
  /// The verbs that were called since the last time.
  std::vector<std::string> calls() const {
    if (!std::filesystem::exists(folder_.path() / "calls.txt")) return {};
    std::istringstream in(folder_.read("calls.txt"));
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line.substr(0, line.find(' ')));
    std::filesystem::remove(folder_.path() / "calls.txt");
    return out;
  }
  void change(const std::string& from, const std::string& to, const std::string& file = "stagecraft.toml") const {
    std::string text = folder_.read(file);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    folder_.write(file, text.replace(at, from.size(), to));
  }
  bool there(const std::string& path) const { return std::filesystem::exists(folder_.path() / path); }
  testing::CommandFolder folder_;
};

TEST_F(Auto, RunsEveryStepOnce) {
  const Outcome first = auto_();
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_THAT(calls(), ElementsAre("profile", "links", "plan", "predict", "run", "compare", "report"));
  EXPECT_THAT(first.err, AllOf(HasSubstr("[1/7] profile: not done yet"), ContainsRegex("\\[7/7\\] report: done in ")));
  // Every measured time is twice the predicted one.
  EXPECT_THAT(first.out,
              AllOf(ContainsRegex("predicted +measured +error"), ContainsRegex("step .* -50.0 %"),
                    ContainsRegex("samples per second .* \\+100.0 %"), HasSubstr("report: out/report.html")));
  EXPECT_EQ(folder_.read("out/logs/profile.log").substr(0, 2), "$ ");
  EXPECT_THAT(folder_.read("out/comparison.txt"), HasSubstr("predicted"));

  const Outcome second = auto_();
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_THAT(calls(), IsEmpty());
  EXPECT_THAT(second.err, HasSubstr("[5/7] run: up to date\n"));
  EXPECT_EQ(second.out.substr(second.out.find("report: ")), "report: out/report.html\n");
}

TEST_F(Auto, RepeatsChangedSteps) {
  ASSERT_EQ(auto_().status, 0);
  (void)calls();
  change("stages = 2", "stages = 2\noptions = [\"--accept-untrusted\"]");  // the same plan comes out
  EXPECT_THAT(auto_().err, HasSubstr("[3/7] plan: its command has changed"));
  EXPECT_THAT(calls(), ElementsAre("plan"));
  change("microbatches = 4", "microbatches = 8");
  EXPECT_EQ(auto_("--until predict").status, 0);
  EXPECT_THAT(calls(), ElementsAre("plan", "predict"));
  change("microbatches = 8", "microbatches = 4");
  EXPECT_THAT(auto_().err, HasSubstr("[5/7] run: up to date"));  // its plan is the one of its training again
  EXPECT_THAT(calls(), ElementsAre("plan", "predict"));

  std::filesystem::remove(folder_.path() / "out/prediction.json");
  EXPECT_THAT(auto_().err, HasSubstr("[4/7] predict: out/prediction.json is missing"));
  EXPECT_THAT(calls(), ElementsAre("predict"));

  change("\"version\": \"0.", "\"version\": \"x0.", "out/steps.json");  // of profile, which is the first there
  EXPECT_THAT(auto_().err, ContainsRegex("it was run by version x0\\."));
  EXPECT_EQ(calls().size(), 1u);
}

TEST_F(Auto, KeepsWhatTheUserChangedByHand) {
  ASSERT_EQ(auto_().status, 0);
  (void)calls();
  change("\"microbatches\": 4", "\"microbatches\": 2", "out/plan.json");
  const Outcome o = auto_("--until predict");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, AllOf(HasSubstr("[3/4] plan: up to date; out/plan.json has changed since; it is kept"),
                           HasSubstr("[4/4] predict: out/plan.json has changed")));
  EXPECT_THAT(calls(), ElementsAre("predict"));
  EXPECT_EQ(auto_("--from plan --until plan").status, 0);
  EXPECT_THAT(folder_.read("out/plan.json"), HasSubstr("\"microbatches\": 4"));
}

TEST_F(Auto, ContinuesATrainingOrKeepsItUnderAnotherName) {
  ASSERT_EQ(auto_().status, 0);
  change("steps = 4", "steps = 6");
  const Outcome longer = auto_();
  EXPECT_THAT(longer.err,
              AllOf(HasSubstr("[5/7] run: its command has changed"), Not(HasSubstr("moved the previous training"))));
  EXPECT_FALSE(there("out/run.1"));
  change("learning_rate = 0.1", "learning_rate = 0.2");
  const Outcome other = auto_();
  EXPECT_EQ(other.status, 0) << other.err;
  EXPECT_THAT(other.err, HasSubstr("moved the previous training from out/run to out/run.1"));
  EXPECT_TRUE(there("out/run.1/checkpoints"));
  EXPECT_THAT(auto_("--from run").err, HasSubstr("to out/run.2"));
  change("steps = 6", "steps = 5");  // a shorter one cannot continue
  EXPECT_THAT(auto_().err, HasSubstr("to out/run.3"));
  // One that failed continues.
  (void)calls();
  folder_.write("do-run", "exit 3\n");
  change("steps = 5", "steps = 7");
  EXPECT_EQ(auto_().status, 3);
  std::filesystem::remove(folder_.path() / "do-run");
  EXPECT_THAT(auto_().err, HasSubstr("[5/7] run: it did not finish"));
  EXPECT_FALSE(there("out/run.4"));
}

TEST_F(Auto, SaysWhichStepFailedAndHowToContinue) {
  folder_.write("do-plan", "echo 'no such strategy' >&2\nexit 2\n");
  const Outcome o = auto_();
  EXPECT_EQ(o.status, 1);  // the project is wrong, not the command line
  EXPECT_THAT(o.err,
              AllOf(HasSubstr("stagecraft-auto: step plan failed with status 2\n"),
                    HasSubstr("\n  command:  stagecraft-plan out/graph.json out/topology.json --strategy uniform "),
                    HasSubstr("\n  log:      out/logs/plan.log\n"),
                    HasSubstr("\n  continue: fix the cause, then stagecraft-auto\n")));
  EXPECT_THAT(folder_.read("out/logs/plan.log"), HasSubstr("no such strategy"));
  EXPECT_THAT(calls(), ElementsAre("profile", "links", "plan"));
  std::filesystem::remove(folder_.path() / "do-plan");
  EXPECT_EQ(auto_().status, 0);
  EXPECT_THAT(calls(), ElementsAre("plan", "predict", "run", "compare", "report"));
  folder_.write("do-profile", "cp g.json out/graph.json; echo 'not trusted; add --accept-untrusted' >&2; exit 1\n");
  const Outcome doubted = auto_("--from profile");
  EXPECT_EQ(doubted.status, 1);
  EXPECT_THAT(doubted.err, HasSubstr("\n  or:       stagecraft-auto --accept-untrusted"));
  folder_.write("do-profile", "echo 'not trusted; add --accept-untrusted' >&2; echo 'no such model' >&2; exit 1\n");
  EXPECT_THAT(auto_("--from profile").err, Not(HasSubstr("  or:  "))) << "that would not help";
  std::filesystem::remove(folder_.path() / "do-profile");
  (void)calls();
  EXPECT_EQ(auto_("--accept-untrusted --until links").status, 0);
  EXPECT_THAT(folder_.read("calls.txt"), ContainsRegex("profile .*--accept-untrusted"));
  (void)calls();
  EXPECT_EQ(auto_("--until links").status, 0);  // it changes no result
  EXPECT_THAT(calls(), IsEmpty());
}

TEST_F(Auto, ForwardsAnInterruptAndResumes) {
  folder_.write("do-run", "trap 'exit 75' TERM\ntouch hangs\nsleep 600 &\nwait $!\n");
  const std::string interrupt =
      "STAGECRAFT_BIN=bin stagecraft-auto & pid=$!\nwhile [ ! -e hangs ]; do sleep 0.05; done\nkill -TERM $pid\nwait "
      "$pid";
  const Outcome o = folder_.run(interrupt);
  EXPECT_EQ(o.status, 75) << o.err;
  EXPECT_THAT(o.err, AllOf(HasSubstr("step run was interrupted and saved a checkpoint"),
                           HasSubstr("\n  continue: stagecraft-auto\n")));
  EXPECT_THAT(folder_.read("out/steps.json"), HasSubstr("\"ended\": false"));
  std::filesystem::remove(folder_.path() / "do-run");
  std::filesystem::remove(folder_.path() / "hangs");
  (void)calls();
  EXPECT_EQ(auto_().status, 0);
  EXPECT_THAT(calls(), ElementsAre("run", "compare", "report"));
  EXPECT_FALSE(there("out/run.1"));

  folder_.write("do-plan", "touch hangs\nsleep 600 &\nwait $!\n");
  change("stages = 2", "stages = 2\ntime_limit = 5");
  const Outcome other = folder_.run(interrupt);
  EXPECT_EQ(other.status, 128 + 15) << other.err;
  EXPECT_THAT(other.err, HasSubstr("step plan was interrupted"));
  EXPECT_EQ(folder_.run("find out -name '*.partial*'").out, "");
}

TEST_F(Auto, PrintsCommandsThatAShellRuns) {
  const Outcome dry = auto_("--dry-run");
  EXPECT_EQ(dry.status, 0) << dry.err;
  EXPECT_THAT(calls(), IsEmpty());
  EXPECT_FALSE(there("out"));
  EXPECT_THAT(dry.out,
              AllOf(HasSubstr("# profile: not done yet\nmkdir -p out\nstagecraft-profile mlp "),
                    HasSubstr("stagecraft-compare out/prediction.json out/run/measured.json > out/comparison.txt")));
  folder_.write("commands.sh", dry.out);
  const Outcome typed = folder_.run("PATH=$PWD/bin:$PATH bash -e commands.sh");
  EXPECT_EQ(typed.status, 0) << typed.err;
  EXPECT_THAT(calls(), ElementsAre("profile", "links", "plan", "predict", "run", "compare", "report"));
  EXPECT_TRUE(there("out/report.html"));

  std::filesystem::remove_all(folder_.path() / "out");
  ASSERT_EQ(auto_().status, 0);
  change("learning_rate = 0.1", "learning_rate = 0.2");
  const Outcome later = auto_("--dry-run");
  EXPECT_THAT(later.out, AllOf(HasSubstr("# profile: its command has changed\n"), HasSubstr("# links: up to date\n"),
                               HasSubstr("# plan: out/graph.json will change\n"), HasSubstr("\nmv out/run out/run.1\n"),
                               HasSubstr("\nmkdir -p out/run\n")));
}

TEST_F(Auto, StartsWhereItIsTold) {
  const Outcome early = auto_("--from plan");
  EXPECT_EQ(early.status, 1);
  EXPECT_THAT(early.err, HasSubstr("out/graph.json: does not exist, and the steps before --from are not run"));
  ASSERT_EQ(auto_().status, 0);
  (void)calls();
  change("learning_rate = 0.1", "learning_rate = 0.2");  // profile would be done again
  EXPECT_THAT(auto_("--from predict --until predict").err,
              HasSubstr("[1/4] profile: left unchanged because of --from"));
  EXPECT_THAT(calls(), ElementsAre("predict"));
  EXPECT_EQ(auto_("--from sing").status, 2);
  const Outcome none = auto_("--until evaluate");
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, HasSubstr("unknown step of this project \"evaluate\", known are profile, links, plan, "));
  EXPECT_THAT(auto_("--from plan --until links").err, HasSubstr("--until links comes before --from plan"));
}

TEST_F(Auto, WorksInTheProjectsFolder) {
  folder_.write("stagecraft.toml", "");
  std::filesystem::create_directory(folder_.path() / "sub dir");
  folder_.write("sub dir/p.toml",
                "[model]\ngraph = \"../g.json\"\n[cluster]\ntopology = \"../t.json\"\n[output]\nfolder = \"out\"\n");
  const Outcome o = auto_("'sub dir/p.toml'");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_TRUE(there("sub dir/out/report.html"));
  EXPECT_THAT(o.out, AllOf(ContainsRegex("step +[0-9.]+ "), Not(HasSubstr("measured"))));
  const Outcome dry = auto_("'sub dir/p.toml' --from plan --dry-run");
  EXPECT_EQ(dry.out.substr(0, dry.out.find('\n')), "cd 'sub dir'");
}

TEST_F(Auto, NamesWhatIsMissing) {
  std::filesystem::remove(folder_.path() / "stagecraft.toml");
  EXPECT_THAT(auto_().err, HasSubstr("stagecraft.toml: cannot read: No such file or directory"));
  folder_.write("stagecraft.toml", "[model]\nname = \"mlp\"\nsize = 4\n");
  const Outcome wrong = auto_();
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.err,
              HasSubstr("stagecraft-auto: stagecraft.toml: line 3 column 1: unknown key of [model] \"size\""));
  folder_.write("stagecraft.toml", std::string(kProject) + "[cluster.x]\n");
  EXPECT_EQ(auto_().status, 1);
  folder_.write("stagecraft.toml", kProject);
  std::filesystem::create_directory(folder_.path() / "out");
  folder_.write("out/steps.json", "{}");
  EXPECT_THAT(auto_().err, HasSubstr("out/steps.json: /: key \"format\" is missing"));
}

TEST_F(Auto, NamesTheProgramThatThisBuildLacks) {
  if (there(program_folder() + "/stagecraft-profile")) GTEST_SKIP() << "this build has stagecraft-profile";
  std::filesystem::remove(folder_.path() / "bin/stagecraft-profile");
  const Outcome none = auto_();
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, HasSubstr("step profile needs the program stagecraft-profile, which was not found: it was "
                                  "built without LibTorch. Build it with scripts/setup, or give [model] graph"));
  EXPECT_FALSE(there("out"));
}

TEST_F(Auto, WorksAloneInAFolder) {
  std::filesystem::create_directory(folder_.path() / "out");
  const Outcome o = folder_.run("STAGECRAFT_BIN=bin flock out stagecraft-auto");
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("out: another stagecraft auto is using it"));
}

TEST_F(Auto, AsksOnATerminalBeforeItTrains) {
  if (folder_.run("script -qec true /dev/null").status != 0) GTEST_SKIP() << "no pseudo-terminals here";
  const auto typed = [&](const std::string& answer) {
    return folder_.run("export STAGECRAFT_BIN=bin; echo '" + answer +
                       "' | script -qec 'stagecraft-auto --from predict --until run' /dev/null");
  };
  ASSERT_EQ(auto_("--until plan").status, 0);
  const Outcome no = typed("n");
  EXPECT_EQ(no.status, 1) << no.out;
  EXPECT_THAT(no.out, ContainsRegex("run: 4 steps, predicted .*Train now\\? \\[Y/n\\]"));
  EXPECT_FALSE(there("out/run"));
  const Outcome yes = typed("y");
  EXPECT_EQ(yes.status, 0) << yes.out;
  EXPECT_TRUE(there("out/run/measured.json"));
}

TEST_F(Auto, BeginsWithWhatInitWrites) {
  const Outcome kept = folder_.run("stagecraft-init");
  EXPECT_EQ(kept.status, 1);
  EXPECT_THAT(kept.err,
              HasSubstr("stagecraft.toml: already exists, so it is not replaced; use another name, or --force"));
  EXPECT_EQ(folder_.read("stagecraft.toml"), kProject);
  const Outcome o = folder_.run("stagecraft-init --force --from g.json --topology t.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("wrote stagecraft.toml; review it, then run: stagecraft auto\n"));
  EXPECT_EQ(auto_().status, 0);
  EXPECT_THAT(calls(), ElementsAre("plan", "predict", "report"));
  EXPECT_THAT(
      folder_.run("stagecraft-init - --from gpt layers=4 --devices 3").out,
      AllOf(HasSubstr("\nname = \"gpt\" "), HasSubstr("\noptions = { layers = 4 }"), HasSubstr("\ndevices = 3 ")));
  const Outcome missing = folder_.run("stagecraft-init no.toml --from none.pt2");
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.err, HasSubstr("none.pt2: does not exist"));
  EXPECT_EQ(folder_.run("stagecraft-init no.toml --from gpt layers").status, 2);
  EXPECT_EQ(folder_.run("stagecraft-init no.toml --estimate H200").status, 2);
  EXPECT_EQ(folder_.run("stagecraft-init no.toml --devices 0").status, 2);
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"--topology example:dgx-h10",
            "--topology: unknown example \"dgx-h10\", did you mean dgx-h100? known are aws-p5,"},
           {"--topology t.json --estimate A100", "--estimate: "},
           {"--topology t.json --estimate Z80", "--estimate: "}}) {
    const Outcome refused = folder_.run("stagecraft-init no.toml --from gpt " + arguments);
    EXPECT_EQ(refused.status, 2) << arguments;
    EXPECT_THAT(refused.err, HasSubstr(message));
  }
  EXPECT_EQ(folder_.run("stagecraft-init no.toml --topology none.json").status, 1);
  // Paths are relative to the project file.
  EXPECT_THAT(folder_.run("mkdir sub && stagecraft-init sub/no.toml --from g.json --topology t.json").err,
              HasSubstr("sub/g.json: does not exist"));
  EXPECT_EQ(folder_.run("stagecraft-init sub/yes.toml --from ../g.json --topology ../t.json").status, 0);
  EXPECT_FALSE(there("no.toml"));
  EXPECT_THAT(folder_.run("stagecraft-init - --from gpt --topology example:dgx-h100").err,
              HasSubstr("note: the topology's devices are GPUs"));
  EXPECT_EQ(folder_.run("stagecraft-init - --from gpt --topology example:dgx-h100 --estimate H100-SXM").err, "");
  EXPECT_EQ(folder_.run("stagecraft-init none/no.toml").status, 1);
}

}  // namespace
}  // namespace stagecraft
