#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/format/plan_json.h"
#include "costmodel/format/timeline_json.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/run_command.h"

// stagecraft-run with logs, hosts and a prediction, as a user starts it. A script replaces ssh: it runs its command on
// this machine, in a new session and with an environment as empty as a login's.

namespace stagecraft {
namespace {

using ::testing::ContainsRegex;
using testing::cut_plan;
using ::testing::HasSubstr;
using testing::Outcome;

class RunLaunch : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    planned_ = new testing::PlannedModel(testing::planned_model("mlp", {{"inputs", "12"}, {"width", "16"}}, 3));
  }
  static void TearDownTestSuite() { delete planned_; }
  RunLaunch() {
    Plan plan = cut_plan(*planned_, {3}, {1, 1}, "1f1b", 4);
    plan.iteration.reset();
    folder_.write("plan.json", format::plan_json(plan));
    plan.iteration = Seconds(2);
    folder_.write("predicted.json", format::plan_json(plan));
    folder_.write("replicated.json", format::plan_json(cut_plan(*planned_, {3}, {2, 1}, "1f1b", 5)));
    folder_.write("hosts.txt", "127.0.0.1\n127.0.0.2 slots=2\n");
    folder_.write("shell",
                  "#!/bin/sh\n"
                  "echo \"$1 $2\" >> \"$(dirname \"$0\")/calls.txt\"\n"
                  "env -i PATH=/usr/bin:/bin setsid -w sh -c \"cd /; $2\"\n");
    folder_.write("unreached", "#!/bin/sh\n[ $1 = 127.0.0.1 ] || exit 255\nsh -c \"$2\"\n");
    std::filesystem::permissions(folder_.path() / "shell", std::filesystem::perms::owner_all);
    std::filesystem::permissions(folder_.path() / "unreached", std::filesystem::perms::owner_all);
  }
  std::vector<double> losses(const std::string& file) const {
    return format::parse_measurement(folder_.read(file), file).losses;
  }

  static testing::PlannedModel* planned_;
  testing::CommandFolder folder_;
};
testing::PlannedModel* RunLaunch::planned_ = nullptr;

const std::string kOnHosts = " --hosts hosts.txt --remote-shell ./shell --timeout 5 ";
/// Shell lines: wait until the run in the background has printed a step.
constexpr const char* kUntilAStep = "until grep -q 'step 1/' run.txt; do kill -0 $run || exit 9; sleep 0.02; done\n";
/// Shell functions: `ranks` lists the ranks that run in this folder; the other kills the rank with this number.
constexpr const char* kRanks =
    "ranks() {\n"
    "  for process in /proc/[0-9]*; do\n"
    "    case $(readlink $process/exe)@$(readlink $process/cwd) in */stagecraft-run@$PWD)\n"
    "      tr '\\0' '\\n' < $process/environ 2> /dev/null | grep -q '^RANK=' && echo ${process#/proc/};;\n"
    "    esac\n"
    "  done\n"
    "}\n"
    "kill_rank() {\n"
    "  for one in $(ranks); do\n"
    "    if tr '\\0' '\\n' < /proc/$one/environ | grep -qx RANK=$1; then kill -KILL $one; fi\n"
    "  done\n"
    "}\n";

TEST_F(RunLaunch, GivesEachRankASeparateLog) {
  const Outcome o = folder_.run("stagecraft-run replicated.json --spawn --steps 3 --logs logs/run -o -");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(folder_.run("ls logs/run").out, "rank-0.log\nrank-1.log\nrank-2.log\n");
  EXPECT_THAT(o.err, HasSubstr("step 3/3 loss "));
  EXPECT_EQ(format::parse_measurement(o.out, "out").losses.size(), 3U);
  const std::string log = folder_.read("logs/run/rank-0.log");
  EXPECT_THAT(log, HasSubstr(o.out));
  EXPECT_EQ(log.size(), o.out.size() + o.err.size());
}

TEST_F(RunLaunch, KeepsTheLogsOfRanksThatEndAndAddsToThem) {
  const Outcome o =
      folder_.run(kRanks + std::string("stagecraft-run replicated.json --steps 100000000 --spawn ") +
                  "--timeout 3 --logs logs 2> run.txt & run=$!\n" + kUntilAStep + "kill_rank 1\nwait $run");
  EXPECT_EQ(o.status, 128 + 9);
  for (const char* file : {"logs/rank-0.log", "logs/rank-2.log"}) {
    EXPECT_THAT(folder_.read(file), HasSubstr("rank 1")) << file;
    EXPECT_THAT(folder_.read(file), HasSubstr(" [SC4102]\n")) << file;
  }
  EXPECT_EQ(folder_.run("grep -vxFf run.txt logs/rank-0.log").out, "") << "lines that the terminal did not get";
  EXPECT_THAT(folder_.read("run.txt"), HasSubstr("stagecraft: rank 1 was killed by signal 9 (Killed)\n"));
  EXPECT_EQ(folder_.read("logs/rank-1.log"), "") << "nothing was said there";

  const std::string before = folder_.read("logs/rank-2.log");
  const Outcome again = folder_.run("stagecraft-run replicated.json --data synthetic --spawn --steps 3 --logs logs");
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(folder_.read("logs/rank-2.log").substr(before.size()),
              ::testing::MatchesRegex("stagecraft: rank 2 restarts, [0-9: -]+ UTC\n"));
  EXPECT_THAT(again.err, ::testing::StartsWith("step 1/3 loss "));
}

TEST_F(RunLaunch, LogsRanksThatAnotherLauncherStarted) {
  const Outcome o = folder_.run(
      "export RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=1\n"
      "stagecraft-run nowhere.json --logs logs");
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("stagecraft-run: nowhere.json: "));
  EXPECT_EQ(folder_.read("logs/rank-0.log"), o.err);
}

TEST_F(RunLaunch, SaysWhyThereCanBeNoLogs) {
  for (const char* how : {" --spawn", "", " --hosts hosts.txt"}) {
    const Outcome o = folder_.run("stagecraft-run plan.json --logs hosts.txt/logs" + std::string(how));
    EXPECT_EQ(o.status, 1);
    EXPECT_EQ(o.err, "stagecraft-run: hosts.txt/logs: cannot write: Not a directory [SC1102]\n");
  }
}

TEST_F(RunLaunch, PrintsThePredictionWithEachStep) {
  const Outcome o = folder_.run("stagecraft-run predicted.json --steps 2");
  EXPECT_EQ(o.status, 0) << o.err;
  const std::string speed = "[0-9.]+ samples/s, [0-9.]+ [num]?s per step \\(predicted 2\\.00 s, -[0-9]+ %\\)\n";
  EXPECT_THAT(o.err, ContainsRegex("step 1/2 loss [0-9.]+ " + speed + "step 2/2 loss [0-9.]+ " + speed +
                                   "loss [0-9.]+ to [0-9.]+ in 2 steps; " + speed));
  EXPECT_THAT(folder_.run("stagecraft-run plan.json --steps 1").err, ::testing::Not(HasSubstr("predicted")));
}

TEST_F(RunLaunch, StartsRanksOnTheHostsInOrder) {
  EXPECT_EQ(folder_.run("stagecraft-run replicated.json --spawn --steps 4 -o here.json").status, 0);
  const Outcome o = folder_.run("mkdir \"it's here\"; cp *.json hosts.txt shell \"it's here\"; cd \"it's here\"\n" +
                                std::string("export STAGECRAFT_SECRET=whisper\nstagecraft-run replicated.json") +
                                kOnHosts + "--steps 4 -o ../there.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(losses("there.json"), losses("here.json"));
  const std::string calls = folder_.read("it's here/calls.txt");
  EXPECT_EQ(folder_.run("cut -d ' ' -f 1 \"it's here/calls.txt\" | sort").out, "127.0.0.1\n127.0.0.2\n127.0.0.2\n");
  EXPECT_THAT(calls, ContainsRegex("127\\.0\\.0\\.2 .* LOCAL_RANK=[^ ]*1[^ ]* MASTER_ADDR=[^ ]*127\\.0\\.0\\.1[^ ]* "));
  EXPECT_THAT(calls, ::testing::Not(HasSubstr("whisper")));
}

TEST_F(RunLaunch, StartsLocalhostWithoutARemoteShell) {
  folder_.write("hosts.txt", "localhost slots=2\n");
  const Outcome o =
      folder_.run("stagecraft-run plan.json --hosts hosts.txt --remote-shell false --steps 2 --timeout 5");
  EXPECT_EQ(o.status, 0) << o.err;
  folder_.write("hosts.txt", "localhost\n127.0.0.2\n");
  const Outcome mixed = folder_.run("stagecraft-run plan.json" + kOnHosts + "--steps 2");
  EXPECT_EQ(mixed.status, 1);
  EXPECT_THAT(mixed.err, HasSubstr("rank 0 is on localhost, which other hosts cannot reach; use"));
  const Outcome named = folder_.run("MASTER_ADDR=127.0.0.1 stagecraft-run plan.json" + kOnHosts + "--steps 2");
  EXPECT_EQ(named.status, 0) << named.err;
}

TEST_F(RunLaunch, RefusesHostsThatAreTooFewAndOtherChannels) {
  folder_.write("few.txt", "red\n");
  const Outcome few = folder_.run("stagecraft-run replicated.json --hosts few.txt");
  EXPECT_EQ(few.status, 1);
  EXPECT_EQ(few.err,
            "stagecraft-run: the plan needs 3 ranks, the 1 host has 1 slot; set slots=N for hosts that run more than "
            "one [SC4105]\n");
  EXPECT_EQ(folder_.run("stagecraft-run plan.json --hosts nowhere.txt").err,
            "stagecraft-run: nowhere.txt: cannot read: No such file or directory [SC1101]\n");
  EXPECT_THAT(folder_.run("stagecraft-run plan.json --hosts hosts.txt --channel local").err,
              HasSubstr("channel local runs all ranks as threads of one process; remove --hosts"));
  EXPECT_EQ(folder_.run("stagecraft-run plan.json --hosts hosts.txt --spawn").status, 2);
}

TEST_F(RunLaunch, DryRunReadsTheHostsAndPrintsWhereRanksRun) {
  folder_.write("hosts.txt", "127.0.0.1:2\nme@red.invalid  # has no address, by RFC 6761\nlocalhost slots=4\n");
  const Outcome o = folder_.run("stagecraft-run replicated.json --hosts hosts.txt --dry-run");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(
      o.out,
      "rank 0: host 127.0.0.1, device 0, stage 0, replica 0, 3 layers fc1 to fc2, 14 actions per step\n"
      "rank 1: host 127.0.0.1, device 1, stage 0, replica 1, 3 layers fc1 to fc2, 10 actions per step\n"
      "rank 2: host me@red.invalid (no address), device 2, stage 1, replica 0, 5 layers relu2 to loss, 21 actions "
      "per step\n"
      "host localhost (127.0.0.1): no rank\n"
      "the ranks meet at 127.0.0.1\n");
  EXPECT_EQ(
      o.err,
      "stagecraft-run: warning: hosts.txt: this machine finds no address for red.invalid: correct the name, unless "
      "the remote shell and the hosts know it\n");
  EXPECT_EQ(folder_.run("stagecraft-run plan.json --hosts nowhere.txt --dry-run").err,
            "stagecraft-run: nowhere.txt: cannot read: No such file or directory [SC1101]\n");
  folder_.write("few.txt", "red\n");
  EXPECT_THAT(folder_.run("stagecraft-run replicated.json --hosts few.txt --dry-run").err,
              HasSubstr("the plan needs 3 ranks, the 1 host has 1 slot"));
}

TEST_F(RunLaunch, SpawnsInTheShellOfAnotherLauncher) {
  const std::string slurm = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 ";
  const std::string pod = "RANK=0 WORLD_SIZE=1 MASTER_ADDR=pod-0 MASTER_PORT=29500 ";
  for (const std::string& where : {slurm, pod}) {
    const Outcome o = folder_.run(where + "stagecraft-run plan.json --spawn --steps 1");
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_THAT(o.err, HasSubstr("note: --spawn starts all ranks of the run: "));
    EXPECT_EQ(o.err.find("note: --spawn"), o.err.rfind("note: --spawn")) << "ranks repeat it:\n" << o.err;
  }
  EXPECT_THAT(folder_.run(slurm + "SLURM_STEP_NODELIST=here stagecraft-run plan.json --steps 1").err,
              HasSubstr("plan.json: the plan needs 2 ranks, slurm started 1; start 2, or use --spawn to start them on "
                        "this machine without slurm"));
  EXPECT_THAT(folder_.run(pod + "stagecraft-run plan.json --steps 1").err,
              HasSubstr("RANK is set, but LOCAL_RANK is not; set LOCAL_RANK too, or unset RANK, or let --spawn start"));
}

TEST_F(RunLaunch, NamesTheCheckpointToResumeFromAfterACrash) {
  const Outcome o = folder_.run(
      kRanks +
      std::string(
          "stagecraft-run plan.json --steps 100000000 --spawn --timeout 5 --checkpoint saved --checkpoint-every 1 "
          "--log-every 1 2> run.txt & run=$!\n") +
      kUntilAStep + "until ls -d saved/step-*[0-9] > /dev/null 2>&1; do sleep 0.02; done\nkill_rank 1\nwait $run");
  EXPECT_NE(o.status, 0);
  EXPECT_THAT(folder_.read("run.txt"),
              ContainsRegex("note: the newest complete checkpoint is saved/step-[0-9]+; use --resume to continue from "
                            "it\n"));
}

TEST_F(RunLaunch, NamesAHostThatIsNotReached) {
  const Outcome o =
      folder_.run("stagecraft-run plan.json --hosts hosts.txt --remote-shell ./unreached --steps 2 --timeout 1");
  EXPECT_EQ(o.status, 255);
  EXPECT_THAT(o.err, HasSubstr("stagecraft: rank 1 on 127.0.0.2 ended with status 255: its remote shell could not "
                               "reach the host or lost the connection\n"));
}

TEST_F(RunLaunch, EndsAllHostsAndStartsThemAgainWhenARankIsKilled) {
  const Outcome o = folder_.run(
      kRanks + std::string("stagecraft-run plan.json --steps 200 --checkpoint saved --checkpoint-every 1 --restart 1") +
      kOnHosts + "2> run.txt & run=$!\n" + kUntilAStep + "kill_rank 1\nwait $run");
  const std::string told = folder_.read("run.txt");
  EXPECT_EQ(o.status, 0) << told;
  EXPECT_THAT(told, HasSubstr("stagecraft: rank 1 on 127.0.0.2 was killed by signal 9 (Killed)\n"));
  EXPECT_THAT(told, HasSubstr("stagecraft: restarting all ranks, attempt 1 of 1\n"));
  EXPECT_THAT(told, HasSubstr("resuming from saved/step-"));
  EXPECT_THAT(told, HasSubstr("step 200/200 loss"));
}

TEST_F(RunLaunch, PassesTerminationOnToTheHosts) {
  const Outcome o = folder_.run("stagecraft-run plan.json --steps 100000000 --checkpoint saved" + kOnHosts +
                                "2> run.txt & run=$!\n" + kUntilAStep + "kill -TERM $run\nwait $run");
  EXPECT_EQ(o.status, 75) << folder_.read("run.txt");
  EXPECT_THAT(folder_.read("run.txt"), HasSubstr(" of 100000000 steps, saved in saved/step-"));
}

TEST_F(RunLaunch, LeavesNoRankOnAHostWhenTheStartingProcessIsKilled) {
  const Outcome o = folder_.run(kRanks + std::string("stagecraft-run plan.json --steps 100000000 --logs logs") +
                                kOnHosts + "2> run.txt & run=$!\n" + kUntilAStep +
                                "[ $(ranks | wc -l) -ge 2 ] || exit 9\nkill -KILL $run\n"
                                "for i in $(seq 500); do [ -n \"$(ranks)\" ] || exit 0; sleep 0.02; done; exit 8");
  EXPECT_EQ(o.status, 0) << folder_.read("run.txt");
  EXPECT_THAT(folder_.read("logs/rank-0.log") + folder_.read("logs/rank-1.log"),
              ContainsRegex("stagecraft: rank [01]: the process that started this run has exited\n"));
}

}  // namespace
}  // namespace stagecraft
