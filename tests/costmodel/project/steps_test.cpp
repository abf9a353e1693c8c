#include "costmodel/project/steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "costmodel/format/escaping.h"
#include "costmodel/format/results/steps_json.h"
#include "costmodel/project/auto.h"
#include "tests/support/run_command.h"

namespace stagecraft::project {
namespace {

using ::testing::ElementsAre;

std::string one_example(const std::string& name) {
  if (name == "dgx-h100") return "/share/dgx-h100.json";
  throw std::invalid_argument("no such example");
}

TEST(DataFiles, AreThoseThatTheSourceNames) {
  EXPECT_THAT(data_files("synthetic"), ElementsAre());
  EXPECT_THAT(data_files("tensors:t.safetensors"), ElementsAre("t.safetensors"));
  EXPECT_THAT(data_files("tensors-in-order:x=a.npy,y=b=c.npy"), ElementsAre("a.npy", "b=c.npy"));
  EXPECT_THAT(data_files("text:a=b,c.txt"), ElementsAre("a=b,c.txt"));
  EXPECT_THAT(data_files("tokens:t.parquet,column=text"), ElementsAre("t.parquet"));
  EXPECT_THAT(data_files("fashion-mnist:d"), ElementsAre("d"));
}

TEST(DataFiles, OfImagesAreTheFolderWithoutOptions) {
  EXPECT_THAT(data_files("images:photos"), ElementsAre("photos"));
  EXPECT_THAT(data_files("images:photos,augment=yes"), ElementsAre("photos"));
  EXPECT_THAT(data_files("images:a,B=1,c,resize=256,mean=0.5/0.5/0.5"), ElementsAre("a,B=1,c"));
}

TEST(IsModelFile, TellsPathsFromNames) {
  EXPECT_TRUE(is_model_file("m.pt2"));
  EXPECT_TRUE(is_model_file("folder/m"));
  EXPECT_FALSE(is_model_file("resnet50"));
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> out;
  for (const ProjectStep& step : steps_of(parse_project(text, "p.toml"), one_example))
    out.push_back(step.name + " " + format::shell_line(step.arguments));
  return out;
}

TEST(Steps, TrainOnThisMachine) {
  EXPECT_THAT(
      lines("[model]\nname = \"mlp\"\noptions = { layers = 2, name = \"a b\" }\nmicrobatch = 8\n"
            "[data]\nsource = \"synthetic\"\n[cluster]\ndevices = 3\nthreads = 1\n"
            "[plan]\nglobal_batch = 64\nreplicas = [2, 1]\n[training]\noptimizer = \"adam\"\nclip_norm = 1\n"
            "[run]\nsteps = 5\n[evaluate]\nsource = \"synthetic\"\nsamples = 9\n[output]\nfolder = \"o/\"\ntraces = "
            "true\n"),
      ElementsAre(
          "profile mlp --set layers=2 --set 'name=a b' --microbatch 8 --data synthetic --threads 1 --optimizer adam "
          "--concurrent 3 -o o/graph.json",
          "links --ranks 3 --spawn --threads 1 -o o/topology.json",
          "plan o/graph.json o/topology.json --replicas 2,1 --microbatches 8 --settings best -o o/plan.json",
          "predict o/graph.json o/topology.json o/plan.json -o o/prediction.json --trace o/predicted-trace.json",
          "run o/plan.json --data synthetic --threads 1 --optimizer adam --clip-norm 1 --spawn --steps 5 --checkpoint "
          "o/run/checkpoints --resume --metrics o/run/metrics.jsonl -o o/run/measured.json --trace o/run/trace.json",
          "evaluate o/run/checkpoints --data synthetic --samples 9 -o o/run/evaluation.json",
          "compare o/prediction.json o/run/measured.json",
          "report o/graph.json o/topology.json o/plan.json o/prediction.json o/run/measured.json -o o/report.html"));
}

TEST(Steps, PlanForAbsentGpus) {
  EXPECT_THAT(
      lines("[model]\nname = \"m.pt2\"\ninputs = [\"a=f\", \"b=g\"]\n[data]\nsource = \"tensors:a=x.npy,b=y.npy\"\n"
            "[cluster]\ntopology = \"example:dgx-h100\"\nestimate = \"H100-SXM\"\naccept_untrusted = true\n"),
      ElementsAre("profile m.pt2 --input a=f --input b=g --data tensors:a=x.npy,b=y.npy -o "
                  "stagecraft-out/graph.json --accept-untrusted",
                  "estimate stagecraft-out/graph.json --device H100-SXM -o stagecraft-out/estimated-graph.json",
                  "plan stagecraft-out/estimated-graph.json /share/dgx-h100.json --settings best -o "
                  "stagecraft-out/plan.json --accept-untrusted",
                  "predict stagecraft-out/estimated-graph.json /share/dgx-h100.json stagecraft-out/plan.json -o "
                  "stagecraft-out/prediction.json --accept-untrusted",
                  "report stagecraft-out/estimated-graph.json /share/dgx-h100.json stagecraft-out/plan.json "
                  "stagecraft-out/prediction.json -o stagecraft-out/report.html"));
}

TEST(Steps, StartFromAGraphOfTheUsers) {
  EXPECT_THAT(lines("[model]\ngraph = \"g.json\"\n[cluster]\ntopology = \"t.json\"\n[plan]\noptions = [\"--from\", "
                    "\"megatron\", \"it's\"]\n[output]\nfolder = \"o\"\n"),
              ElementsAre("plan g.json t.json --from megatron 'it'\\''s' -o o/plan.json",
                          "predict g.json t.json o/plan.json -o o/prediction.json",
                          "report g.json t.json o/plan.json o/prediction.json -o o/report.html"));
}

TEST(Steps, UseGpusAndHosts) {
  const auto all = lines(
      "[model]\nname = \"mlp\"\n[cluster]\ndevice = \"cuda\"\nhosts = \"h.txt\"\n[run]\ncheckpoint = false\nepochs = "
      "2\n"
      "[output]\nfolder = \"o\"\n");
  EXPECT_EQ(all[1], "links --channel nccl -o o/topology.json");
  EXPECT_EQ(all[4],
            "run o/plan.json --device cuda --hosts h.txt --logs o/run/logs --epochs 2 --metrics o/run/metrics.jsonl -o "
            "o/run/measured.json");
}

TEST(Steps, GiveTheOptimizersOptionsToTheProfileToo) {
  const auto all = lines(
      "[model]\nname = \"mlp\"\n[cluster]\ntopology = \"t.json\"\nhosts = \"h.txt\"\nremote_shell = \"ssh -v\"\n"
      "[training]\noptimizer = \"adamw\"\nbetas = [0.9, 0.95]\neps = 1e-7\namsgrad = true\nnesterov = false\nseed = 2\n"
      "rate_schedule = \"one-cycle\"\npct_start = 0.25\nanneal_strategy = \"linear\"\n"
      "[run]\ncheckpoint = false\ndeterministic = true\ntimeout = 7.5\n"
      "validate_data = \"tensors:v.safetensors\"\nvalidate_every = 3\nvalidate_samples = 8\n"
      "[output]\nfolder = \"o\"\ntensorboard = true\n");
  const std::string optimizer = " --optimizer adamw --betas 0.9,0.95 --eps 1e-07 --amsgrad --seed 2";
  EXPECT_EQ(all[0], "profile mlp" + optimizer + " -o o/graph.json");
  EXPECT_EQ(all[3], "run o/plan.json" + optimizer +
                        " --rate-schedule one-cycle --pct-start 0.25 --anneal-strategy linear --deterministic --hosts "
                        "h.txt --remote-shell 'ssh -v' --logs o/run/logs --validate-data tensors:v.safetensors "
                        "--validate-every 3 --validate-samples 8 --timeout 7.5 --metrics o/run/metrics.jsonl -o "
                        "o/run/measured.json --tensorboard o/run/tensorboard");
}

// Every key of [training] becomes an option of its name, and no other.
TEST(Steps, MakeAnOptionOfEachKeyOfTheTraining) {
  std::string text = "[model]\nname = \"mlp\"\ndtype = \"float16\"\n[run]\n[training]\n";
  std::set<std::string> wanted;
  for (const ProjectSection& section : sections()) {
    if (section.name != "training") continue;
    for (const ProjectKey& key : section.keys) {
      text += key.name + " = " + (key.kind == KeyKind::Flag ? "true" : key.example) + "\n";
      std::string option = key.name;
      std::ranges::replace(option, '_', '-');
      wanted.insert("--" + option);
    }
  }
  const auto all = steps_of(parse_project(text, "p.toml"), one_example);
  const auto run = std::ranges::find(all, "run", &ProjectStep::name);
  ASSERT_NE(run, all.end());
  std::set<std::string> found;
  for (const std::string& word : run->training) {
    if (word.starts_with("--")) found.insert(word);
  }
  EXPECT_EQ(found, wanted);
}

/// A project that runs, if it can, with one key more.
Project project_with(const ProjectSection& section, const ProjectKey& key) {
  std::map<std::string, std::string> text{{"model", "name = \"mlp\"\n"}, {"run", ""}};
  if (key.name == "name" || key.name == "graph") text["model"].clear();
  if (key.name == "estimate") text.erase("run");
  if (key.name.starts_with("loss_scale")) text["model"] += "dtype = \"float16\"\n";
  if (key.name == "validate_every" || key.name == "validate_samples") text["run"] = "validate_data = \"synthetic\"\n";
  if (key.name == "png") text["output"] = "pictures = true\n";
  if (section.name == "evaluate" && key.name != "source") text["evaluate"] = "source = \"synthetic\"\n";
  text[section.name] += key.name + " = " + (key.kind == KeyKind::Flag ? "true" : key.example) + "\n";
  std::string all;
  for (const auto& [name, keys] : text) all += "[" + name + "]\n" + keys;
  return parse_project(all, "p.toml");
}

// Of the programs that this build has: without LibTorch, neither profile nor run.
TEST(Steps, UseOptionsThatTheProgramsHave) {
  std::map<std::string, std::set<std::string>> used;
  for (const ProjectSection& section : sections()) {
    for (const ProjectKey& key : section.keys) {
      for (const ProjectStep& step : steps_of(project_with(section, key), one_example)) {
        for (const std::string& word : step.arguments) {
          if (word.starts_with("-")) used[step.name].insert(word);
        }
      }
    }
  }
  const testing::CommandFolder folder;
  std::set<std::string> built;
  for (const auto& [verb, options] : used) {
    if (!std::filesystem::exists(program_folder() + "/stagecraft-" + verb)) continue;
    built.insert(verb);
    const std::string help = folder.run("stagecraft-" + verb + " --help | tr ',\\n' ' '").out;
    for (const std::string& option : options) EXPECT_THAT(help, ::testing::HasSubstr(" " + option + " ")) << verb;
  }
  EXPECT_THAT(built, ::testing::IsSupersetOf({"plan", "predict", "report"}));
}

TEST(Steps, KnowTheFilesThatTheyReadAndWrite) {
  const auto all = steps_of(
      parse_project(
          "[model]\nname = \"m.pt2\"\n[data]\nsource = \"tensors:a=x.npy,b=y.npy\"\n[cluster]\ntopology = "
          "\"t.json\"\n[plan]\nschedule = \"csv:s.csv\"\n[predict]\ncalibration = \"c.json\"\n[run]\nweights = "
          "\"w.pt\"\n[output]\nfolder = \"o\"\n",
          "p.toml"),
      one_example);
  ASSERT_EQ(all.size(), 6u);  // profile, plan, predict, run, compare, report
  EXPECT_THAT(all[0].inputs, ElementsAre("m.pt2"));
  EXPECT_THAT(all[0].data, ElementsAre("x.npy", "y.npy"));
  EXPECT_THAT(all[0].outputs, ElementsAre("o/graph.json"));
  EXPECT_THAT(all[1].inputs, ElementsAre("o/graph.json", "t.json", "s.csv"));
  EXPECT_THAT(all[2].inputs, ElementsAre("o/graph.json", "t.json", "o/plan.json", "c.json"));
  EXPECT_THAT(all[3].inputs, ElementsAre("o/plan.json", "w.pt", "m.pt2"));
  EXPECT_EQ(all[3].length, 10);  // the default of run
  EXPECT_EQ(all[4].standard_output, "o/comparison.txt");
  EXPECT_THAT(all[5].inputs,
              ElementsAre("o/graph.json", "t.json", "o/plan.json", "o/prediction.json", "o/run/measured.json"));
}

TEST(Steps, KeepATrainingWhoseValidationChanges) {
  const auto run_of = [&](const std::string& validation, const std::string& data = "t.npy") {
    const std::string text = "[model]\nname = \"mlp\"\n[data]\nsource = \"tensors:" + data +
                             "\"\n[run]\nvalidate_data = \"tensors:" + validation + "\"\n";
    const auto all = steps_of(parse_project(text, "p.toml"), one_example);
    return *std::ranges::find(all, "run", &ProjectStep::name);
  };
  const ProjectStep first = run_of("v.npy");
  EXPECT_THAT(first.data, ElementsAre("t.npy", "v.npy"));
  EXPECT_THAT(first.beside, ElementsAre("v.npy"));
  EXPECT_EQ(record_of(first).training, record_of(run_of("w.npy")).training);
  EXPECT_NE(record_of(first).command, record_of(run_of("w.npy")).command);
  // The training's own data are not beside it.
  EXPECT_THAT(run_of("t.npy").data, ElementsAre("t.npy"));
  EXPECT_THAT(run_of("t.npy").beside, ::testing::IsEmpty());
  EXPECT_NE(record_of(first).training, record_of(run_of("v.npy", "x.npy")).training);
}

TEST(Steps, RefuseAnExampleThatDoesNotExist) {
  EXPECT_THAT([] { (void)lines("[model]\nname = \"mlp\"\n[cluster]\ntopology = \"example:moon\"\n"); },
              ::testing::ThrowsMessage<std::invalid_argument>("[cluster] topology: no such example"));
}

TEST(TextHash, IsFnv) {  // the values that draft-eastlake-fnv gives
  EXPECT_EQ(format::text_hash(""), "cbf29ce484222325");
  EXPECT_EQ(format::text_hash("a"), "af63dc4c8601ec8c");
}

}  // namespace
}  // namespace stagecraft::project
