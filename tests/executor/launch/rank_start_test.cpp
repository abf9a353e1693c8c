#include "executor/launch/rank_start.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/meeting/meeting_store.h"
#include "tests/support/channels/launch_at.h"

namespace stagecraft::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using How = RankStart::How;

/// One of `ranks` ranks that torchrun started.
meeting::LaunchInfo one_of(int ranks) {
  meeting::LaunchInfo out;
  out.ranks = ranks;
  out.launcher = "torchrun";
  return out;
}

void expect_start(const StartRequest& request, How how, const std::string& channel) {
  const RankStart start = choose_start(request);
  EXPECT_EQ(start.how, how);
  EXPECT_EQ(start.channel, channel);
}

TEST(ChooseStart, TakesThreadsUnlessProcessesAreAskedForOrThere) {
  expect_start({}, How::Threads, "local");
  expect_start({.device = "cuda"}, How::Threads, "local");
  expect_start({.starts_processes = true}, How::Threads, "local");
  expect_start({.starter = "--spawn"}, How::Spawn, "");
  expect_start({.launch = one_of(2)}, How::Process, "");
  expect_start({.starter = "--spawn", .launch = one_of(2)}, How::Process, "");
}

TEST(ChooseStart, FollowsANamedChannel) {
  expect_start({.channel = "local"}, How::Threads, "local");
  expect_start({.channel = "local", .launch = one_of(1)}, How::Threads, "local");
  expect_start({.channel = "gloo", .starter = "--hosts"}, How::Spawn, "gloo");
  expect_start({.channel = "gloo", .starts_processes = true}, How::Spawn, "gloo");
  expect_start({.channel = "gloo", .starts_processes = true, .launch = one_of(2)}, How::Process, "gloo");
}

TEST(ChooseStart, SaysWhatToDoAboutAChannelThatDoesNotFit) {
  const auto refuses = [](const StartRequest& request, const std::string& message) {
    EXPECT_THAT([&] { (void)choose_start(request); }, ThrowsMessage<std::invalid_argument>(HasSubstr(message)));
  };
  refuses({.channel = "pigeons"}, "unknown channel \"pigeons\", known are local, ucx, gloo, nccl");
  refuses({.channel = "nccl", .starter = "--spawn"}, "nccl needs GPUs: use --device cuda, or --channel ");
  refuses({.channel = "gloo", .device = "cuda"}, "gloo needs CPUs: use --device cpu, or --channel nccl");
  refuses({.channel = "gloo"}, "gloo needs one process per rank: add --spawn, or start with torchrun, srun or mpirun");
  refuses({.channel = "local", .starter = "--hosts"},
          "channel local runs all ranks as threads of one process; remove --hosts, or use --channel ");
}

TEST(CheckRankCount, ComparesWhatTheLauncherStartedWithWhatIsNeeded) {
  const std::string needs = "plan.json: the plan needs 3 ranks";
  check_rank_count({How::Process, ""}, one_of(3), 3, needs);
  check_rank_count({How::Threads, "local"}, one_of(1), 3, needs);
  check_rank_count({How::Spawn, ""}, std::nullopt, 3, needs);
  EXPECT_THAT([&] { check_rank_count({How::Process, "gloo"}, one_of(2), 3, needs); },
              ThrowsMessage<InputError>(
                  "plan.json: the plan needs 3 ranks, torchrun started 2; start 3, or use --spawn to start "
                  "them on this machine without torchrun"));
  EXPECT_THAT(
      [&] { check_rank_count({How::Threads, "local"}, one_of(3), 3, needs); },
      ThrowsMessage<InputError>("channel local runs all ranks as threads of one process, torchrun started 3; start "
                                "one, or remove --channel local"));
}

TEST(RunRankProcess, ConnectsTheRanksOverTheChannelOnWhichTheyAgree) {
  const meeting::StoreServer server;
  std::vector<std::string> channels(2);
  std::vector<float> sums(2);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto at = to_index(rank);
        run_rank_process(
            testing::launch_at(server, rank, 2), milliseconds(20000),
            {.channel = "gloo",
             .agreed = {"--seed 1"},
             .prepare =
                 [&](Rendezvous& meeting, const std::string& channel, channel::ChannelSetup& setup) {
                   channels[at] = channel;
                   EXPECT_EQ(setup.launch.rank, rank);
                   EXPECT_EQ(setup.deadline, milliseconds(20000));
                   EXPECT_EQ(setup.activity, meeting.activity());
                 },
             .work =
                 [&](Rendezvous&, channel::Channel& channel) {
                   at::Tensor values = at::full({1}, rank + 1, at::kFloat);
                   channel.start({.kind = Collective::AllReduce, .values = values, .members = {0, 1}, .tag = 1})
                       ->wait();
                   sums[at] = values.item<float>();
                 }});
      });
    }
  }
  EXPECT_THAT(channels, ElementsAre("gloo", "gloo"));
  EXPECT_THAT(sums, ElementsAre(3, 3));
}

TEST(RunRankProcess, TakesTheBestChannelIfNoneIsNamed) {
  const meeting::StoreServer server;
  std::string chosen;
  run_rank_process(
      testing::launch_at(server, 0, 1), milliseconds(20000),
      {.agreed = {},
       .prepare = [&](Rendezvous&, const std::string& channel, channel::ChannelSetup&) { chosen = channel; },
       .work = [](Rendezvous&, channel::Channel& channel) { channel.barrier(); }});
  EXPECT_EQ(chosen, channel::default_channel("cpu", true).name);
}

TEST(RunRankProcess, PassesOnWhatTheWorkThrows) {
  const meeting::StoreServer server;
  EXPECT_THAT(
      [&] {
        run_rank_process(testing::launch_at(server, 0, 1), milliseconds(20000),
                         {.channel = "gloo", .work = [](Rendezvous&, channel::Channel&) {
                            throw std::invalid_argument("no such layer");
                          }});
      },
      ThrowsMessage<std::invalid_argument>("no such layer"));
}

}  // namespace
}  // namespace stagecraft::launch
