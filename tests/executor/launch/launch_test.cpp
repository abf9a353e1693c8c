#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/launch/launch.h"
#include "executor/launch/rendezvous.h"
#include "executor/meeting/launch_info.h"

namespace stagecraft::launch {
namespace {

using Environment = std::map<std::string, std::string>;

const Environment kTorchrun = {
    {"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "red"}, {"MASTER_PORT", "4321"}};
const Environment kSlurm = {{"SLURM_PROCID", "5"},          {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"},
                            {"SLURM_STEP_NODELIST", "red"}, {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "2"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};

Environment with(Environment environment, const std::string& name, const std::string& value) {
  environment[name] = value;
  return environment;
}

Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

std::string error_of(const Environment& environment) {
  try {
    (void)launch_from_environment(environment);
  } catch (const std::invalid_argument& error) { return error.what(); }
  return "no error";
}

/// The text for a variable that is missing beside another.
std::string missing(const std::string& beside, const std::string& name) {
  return "environment: " + beside + " is set, but " + name + " is not; set " + name + " too, or unset " + beside +
         ", or let --spawn start the ranks";
}

TEST(LaunchFromEnvironment, IsAbsentWithoutALauncher) {
  EXPECT_FALSE(launch_from_environment({}).has_value());
  EXPECT_FALSE(launch_from_environment({{"WORLD_SIZE", "8"}, {"HOME", "/"}, {"RANK", ""}}).has_value());
}

TEST(LaunchFromEnvironment, ReadsTorchrun) {
  const meeting::LaunchInfo launch = launch_from_environment(kTorchrun).value();
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.ranks, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.host, "red");
  EXPECT_EQ(launch.port, 4321);
  EXPECT_FALSE(launch.served);
  EXPECT_EQ(launch.run_id, "0.0");
  EXPECT_EQ(launch.launcher, "torchrun");
}

TEST(FindLaunch, IgnoresOtherLaunchersIfTheCommandStartsTheRanks) {
  const auto note = [](const std::string& variable) {
    return "--spawn starts all ranks of the run: " + variable + " and other variables of a launcher are ignored";
  };
  const std::vector<std::pair<Environment, std::string>> launchers = {
      {kTorchrun, note("RANK=5")},
      {without(kTorchrun, "LOCAL_RANK"), note("RANK=5")},
      {kSlurm, note("SLURM_PROCID=5")},
      {kOpenMpi, note("OMPI_COMM_WORLD_RANK=1")},
      {{}, ""}};
  for (const auto& [environment, text] : launchers) {
    const FoundLaunch found = find_launch(environment, "--spawn");
    EXPECT_FALSE(found.launch.has_value());
    EXPECT_EQ(found.note, text);
  }
}

TEST(FindLaunch, FindsTheLauncherOfItsOwnRanksAndOfOthersWithoutTheOption) {
  const FoundLaunch ours = find_launch(with(kTorchrun, "TORCHELASTIC_RUN_ID", "stagecraft-12"), "--hosts");
  EXPECT_EQ(ours.launch.value().launcher, "stagecraft");
  EXPECT_EQ(ours.note, "");
  EXPECT_EQ(find_launch(kSlurm, "").launch.value().launcher, "slurm");
}

TEST(LaunchFromEnvironment, ReadsTheAgentOfTorchrun) {
  Environment environment = with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True");
  environment = with(with(environment, "TORCHELASTIC_RUN_ID", "job"), "TORCHELASTIC_RESTART_COUNT", "2");
  const meeting::LaunchInfo launch = launch_from_environment(environment).value();
  EXPECT_TRUE(launch.agent);
  EXPECT_FALSE(launch.served);
  EXPECT_EQ(launch.run_id, "job.2");
  EXPECT_FALSE(launch_from_environment(with(environment, "TORCHELASTIC_USE_AGENT_STORE", "False"))->agent);
}

TEST(LaunchFromEnvironment, KnowsItsOwnSpawn) {
  const meeting::LaunchInfo launch =
      launch_from_environment(
          with(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True"), "TORCHELASTIC_RUN_ID", "stagecraft-12"))
          .value();
  EXPECT_EQ(launch.launcher, "stagecraft");
  EXPECT_TRUE(launch.served);
  EXPECT_FALSE(launch.agent);
}

TEST(LaunchFromEnvironment, TakesSecretAndAddressToListenOnFromEveryLauncher) {
  for (const Environment& base : {kTorchrun, kSlurm, kOpenMpi}) {
    EXPECT_EQ(launch_from_environment(base)->secret, "");
    const meeting::LaunchInfo launch =
        launch_from_environment(with(with(base, "STAGECRAFT_SECRET", "s3"), "STAGECRAFT_LISTEN", "10.0.0.7")).value();
    EXPECT_EQ(launch.secret, "s3");
    EXPECT_EQ(launch.listen, "10.0.0.7");
  }
}

TEST(LaunchFromEnvironment, ReadsSlurm) {
  const meeting::LaunchInfo launch = launch_from_environment(kSlurm).value();
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.ranks, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.host, "red");
  EXPECT_EQ(launch.port, 20000 + 7 + 2);
  EXPECT_FALSE(launch.served);
  EXPECT_EQ(launch.run_id, "7.2");
  EXPECT_EQ(launch.launcher, "slurm");
}

TEST(LaunchFromEnvironment, IsAbsentInTheScriptOfSbatchAndTheShellOfSalloc) {
  EXPECT_FALSE(launch_from_environment(without(kSlurm, "SLURM_STEP_ID")).has_value());
  for (const char* step : {"4294967290", "4294967291", "4294967292"}) {  // slurm.h: interactive, batch, extern
    EXPECT_FALSE(launch_from_environment(with(kSlurm, "SLURM_STEP_ID", step)).has_value()) << step;
  }
}

TEST(LaunchFromEnvironment, KeepsTheSlurmPortInRange) {
  // 12000 ports from 20000 on: job 24001 with step 2 is 3 past the second round.
  EXPECT_EQ(launch_from_environment(with(kSlurm, "SLURM_JOB_ID", "24001"))->port, 20000 + 3);
}

TEST(LaunchFromEnvironment, TakesTheFirstHostOfANodeList) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"red", "red"},
                                                                  {"red,blue", "red"},
                                                                  {"node[03-05,9],b1", "node03"},
                                                                  {"node[7],b1", "node7"},
                                                                  {"n[2,4-5]", "n2"},
                                                                  {"rack[1-2]n[3-4]x", "rack1n3x"},
                                                                  {"a-b.c[001-120]", "a-b.c001"}};
  for (const auto& [list, host] : cases) {
    EXPECT_EQ(launch_from_environment(with(kSlurm, "SLURM_STEP_NODELIST", list))->host, host) << list;
  }
}

TEST(LaunchFromEnvironment, FallsBackToTheNodesOfTheJob) {
  EXPECT_EQ(launch_from_environment(with(without(kSlurm, "SLURM_STEP_NODELIST"), "SLURM_JOB_NODELIST", "blue"))->host,
            "blue");
}

TEST(LaunchFromEnvironment, RefusesABrokenNodeList) {
  for (const std::string list : {"node[03-05", "[]", "node]", ",b", "node[,3]"}) {
    EXPECT_EQ(
        error_of(with(kSlurm, "SLURM_STEP_NODELIST", list)),
        "environment: SLURM_STEP_NODELIST is \"" + list + "\", which is not a node list such as \"node[03-05,9],b1\"");
  }
}

TEST(LaunchFromEnvironment, ReadsOpenMpiOnOneMachine) {
  const meeting::LaunchInfo launch = launch_from_environment(kOpenMpi).value();
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.ranks, 2);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.host, "127.0.0.1");
  EXPECT_EQ(launch.port, 29500);
  EXPECT_EQ(launch.run_id, "0");
  EXPECT_EQ(launch.launcher, "open mpi");
  const meeting::LaunchInfo numbered =
      launch_from_environment(with(kOpenMpi, "OMPI_MCA_ess_base_jobid", "12005")).value();
  EXPECT_EQ(numbered.port, 20005);
  EXPECT_EQ(numbered.run_id, "12005");
}

TEST(LaunchFromEnvironment, AsksForTheHostOfSeveralMachinesOfOpenMpi) {
  const Environment environment = with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1");
  EXPECT_THAT(error_of(environment), ::testing::HasSubstr("set it with mpirun -x MASTER_ADDR=HOST"));
  EXPECT_EQ(launch_from_environment(with(environment, "MASTER_ADDR", "red"))->host, "red");
}

TEST(LaunchFromEnvironment, MasterAddressAndPortWin) {
  for (const Environment& base : {kSlurm, kOpenMpi}) {
    const meeting::LaunchInfo launch =
        launch_from_environment(with(with(base, "MASTER_ADDR", "green"), "MASTER_PORT", "99")).value();
    EXPECT_EQ(launch.host, "green");
    EXPECT_EQ(launch.port, 99);
  }
}

TEST(LaunchFromEnvironment, TorchrunWinsOverSlurmAndSlurmOverOpenMpi) {
  Environment all = kTorchrun;
  all.insert(kSlurm.begin(), kSlurm.end());
  all.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(launch_from_environment(all)->launcher, "torchrun");
  EXPECT_EQ(launch_from_environment(without(all, "RANK"))->launcher, "slurm");
}

TEST(LaunchFromEnvironment, NamesTheMissingVariable) {
  for (const char* name : {"WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_EQ(error_of(without(kTorchrun, name)), missing("RANK", name));
  }
  for (const char* name : {"SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID"}) {
    EXPECT_EQ(error_of(without(kSlurm, name)), missing("SLURM_PROCID", name));
  }
  EXPECT_EQ(error_of(without(kSlurm, "SLURM_STEP_NODELIST")), missing("SLURM_PROCID", "SLURM_JOB_NODELIST"));
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
    EXPECT_EQ(error_of(without(kOpenMpi, name)), missing("OMPI_COMM_WORLD_RANK", name));
  }
}

TEST(LaunchFromEnvironment, NamesWhatIsNotANumber) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"}) {
    EXPECT_EQ(error_of(with(kTorchrun, name, "4x")),
              std::string("environment: ") + name + " is \"4x\", which is not an integer");
  }
  EXPECT_EQ(error_of(with(kSlurm, "SLURM_JOB_ID", "x")), "environment: SLURM_JOB_ID is \"x\", which is not an integer");
  EXPECT_EQ(error_of(with(kOpenMpi, "OMPI_MCA_ess_base_jobid", "x")),
            "environment: OMPI_MCA_ess_base_jobid is \"x\", which is not an integer");
}

TEST(LaunchFromEnvironment, NamesWhatIsOutOfRange) {
  EXPECT_EQ(error_of(with(kTorchrun, "RANK", "8")), "environment: RANK is 8, must be 0 to 7");
  EXPECT_EQ(error_of(with(kTorchrun, "RANK", "-1")), "environment: RANK is -1, must be 0 to 7");
  EXPECT_EQ(error_of(with(kTorchrun, "WORLD_SIZE", "0")), "environment: WORLD_SIZE is 0, must be 1 to 1048576");
  EXPECT_EQ(error_of(with(kTorchrun, "MASTER_PORT", "65536")), "environment: MASTER_PORT is 65536, must be 1 to 65535");
  EXPECT_EQ(error_of(with(kTorchrun, "LOCAL_RANK", "9")), "environment: LOCAL_RANK is 9, must be 0 to 7");
}

/// The third rank of its machine, under torchrun.
meeting::LaunchInfo seventh_of_eight() {
  meeting::LaunchInfo launch;
  launch.rank = 6;
  launch.ranks = 8;
  launch.local_rank = 2;
  launch.launcher = "torchrun";
  return launch;
}

TEST(GpuOfRank, IsTheLocalRanksUnlessSlurmGaveEachTaskItsOwn) {
  meeting::LaunchInfo launch = seventh_of_eight();
  EXPECT_EQ(gpu_of_rank(launch, 4, false), 2);
  EXPECT_EQ(gpu_of_rank(launch, 2, true), 0);
  EXPECT_EQ(gpu_of_rank(launch, 1, true), 0);
  launch.launcher = "slurm";
  EXPECT_EQ(gpu_of_rank(launch, 4, false), 2);
  EXPECT_EQ(gpu_of_rank(launch, 1, false), 0);
}

TEST(GpuOfRank, SaysWhatHelpsWhereThereAreTooFew) {
  const meeting::LaunchInfo launch = seventh_of_eight();
  EXPECT_THAT([&] { (void)gpu_of_rank(launch, 1, false); },
              ::testing::ThrowsMessage<std::invalid_argument>(
                  "rank 6 has local rank 3 on a machine with 1 GPU: start fewer ranks there, or use --share-gpu"));
  EXPECT_THROW((void)gpu_of_rank(launch, 0, true), std::invalid_argument);
}

}  // namespace
}  // namespace stagecraft::launch
