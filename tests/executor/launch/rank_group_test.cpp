#include "executor/launch/rank_group.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <latch>
#include <map>
#include <thread>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "executor/channel/table/channels.h"
#include "executor/meeting/meeting_store.h"
#include "tests/support/channels/launch_at.h"

namespace stagecraft::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(RunAsThreads, RunsEachRankOnItsChannel) {
  const auto channels = channel::make_local_channels(3, milliseconds(20000));
  std::vector<std::atomic<int>> ran(3);
  run_as_threads(channels, [&](channel::Channel& channel) {
    ++ran[to_index(channel.rank())];
    channel.barrier();  // no rank would get past it alone
  });
  for (const auto& count : ran) EXPECT_EQ(count, 1);
}

TEST(RunAsThreads, OneRanksFailureEndsTheWaitsOfTheOthers) {
  const auto channels = channel::make_local_channels(3, milliseconds(20000));
  std::vector<std::string> heard(3);
  EXPECT_THAT(
      [&] {
        run_as_threads(channels, [&](channel::Channel& channel) {
          if (channel.rank() == 1) throw std::invalid_argument("the plan has 3 stages");
          try {
            channel.barrier();
          } catch (const meeting::PeerError& error) {
            heard[to_index(channel.rank())] = error.what();
            throw;
          }
        });
      },
      ThrowsMessage<std::invalid_argument>("the plan has 3 stages"));
  for (const std::size_t rank : {0U, 2U})
    EXPECT_THAT(heard[rank], AllOf(HasSubstr("rank 1"), HasSubstr("the plan has 3 stages")));
}

TEST(RunAsThreads, AddsALineAboutEachRankToAMissedDeadline) {
  const auto channels = channel::make_local_channels(2, milliseconds(50));
  std::latch begun(2);
  EXPECT_THAT(
      [&] {
        run_as_threads(channels, [&](channel::Channel& channel) {
          channel.activity().begin({"forward", 1, 3, 6});
          begun.arrive_and_wait();
          if (channel.rank() == 0) (void)channel.receive({{1}, at::kFloat}, 1, 5)->wait();
        });
      },
      ThrowsMessage<meeting::PeerError>(
          AllOf(HasSubstr("under tag 5"), HasSubstr("\n  rank 0: forward of microbatch 3 of stage 1 in step 7, wait"),
                HasSubstr("\n  rank 1: forward of microbatch 3 of stage 1 in step 7"))));
}

TEST(RunAsThreads, AddsNothingToOtherErrors) {
  const auto channels = channel::make_local_channels(2, milliseconds(20000));
  EXPECT_THAT([&] { run_as_threads(channels, [](channel::Channel&) { throw meeting::PeerError("a shape"); }); },
              ThrowsMessage<meeting::PeerError>("a shape"));
}

/// A meeting in which the test supplies the other ranks' values.
class FakeMeeting : public Rendezvous {
 public:
  std::vector<std::string> exchange(const std::string& key, const std::string& value) override {
    std::vector<std::string> out{value};
    const auto it = others.find(key);
    if (it != others.end()) out.insert(it->second.first ? out.end() : out.begin(), it->second.second);
    return out;
  }
  void fail(const std::string&) noexcept override {}
  std::shared_ptr<channel::Activity> activity() const override { return nullptr; }
  void leave() noexcept override {}

  /// By key: whether the other rank's number is higher, and its value.
  std::map<std::string, std::pair<bool, std::string>> others;
};

TEST(Agree, LetsEqualLinesPass) {
  FakeMeeting meeting;
  meeting.others["plan"] = {true, "plan 1\nsteps 4\n"};
  EXPECT_NO_THROW(agree(meeting, {"plan 1", "steps 4"}));
}

TEST(Agree, NamesTheFirstLineThatDiffers) {
  FakeMeeting meeting;
  meeting.others["plan"] = {true, "plan 1\nsteps 5\nseed 2\n"};
  EXPECT_THAT(
      [&] { agree(meeting, {"plan 1", "steps 4", "seed 1"}); },
      ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("rank 1"), HasSubstr("steps 5"), HasSubstr("steps 4"))));
  EXPECT_THAT(
      [&] { agree(meeting, {"plan 1"}); },
      ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("rank 1"), HasSubstr("steps 5"), HasSubstr("nothing"))));
}

TEST(Agree, PrintsWhatAStrangerSaysWithoutControlCharacters) {
  FakeMeeting meeting;
  meeting.others["plan"] = {true, "\x1b[2J\n"};
  try {
    agree(meeting, {"plan 1"});
    FAIL() << "they differ";
  } catch (const std::invalid_argument& error) { EXPECT_EQ(std::string(error.what()).find('\x1b'), std::string::npos); }
}

double raw_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string boot_id() {
  std::string out;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> out;
  return out;
}

/// What agree_on_channel makes of another rank's lines: why it has no ucx, why it has no gloo.
AgreedChannel agreed_with(const std::string& lines) {
  FakeMeeting meeting;
  meeting.others["channels"] = {true, lines};
  return agree_on_channel(meeting, "cpu");
}

TEST(AgreeOnChannel, TakesTheFirstThatAllHave) {
  if (!channel::channel_by_name("ucx").why_missing().empty()) GTEST_SKIP() << "no UCX here";
  AgreedChannel agreed = agreed_with("\n\n");
  EXPECT_EQ(agreed.name, "ucx");
  EXPECT_EQ(agreed.note, "");
  agreed = agreed_with("libucp.so.0 is\x1b missing\n\n");
  EXPECT_EQ(agreed.name, "gloo");
  EXPECT_EQ(agreed.note, "using channel gloo: rank 1 has no channel ucx: libucp.so.0 is  missing");
}

TEST(AgreeOnChannel, NamesWhoLacksWhatIfNoneIsLeft) {
  EXPECT_THAT([] { (void)agreed_with("no library\nno network\n"); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("no channel in common"), HasSubstr("rank 1 has no channel gloo: no network"))));
}

TEST(MachinesOf, CountsThemInTheOrderOfRanks) {
  FakeMeeting meeting;
  meeting.others["machine"] = {true, "another"};
  EXPECT_EQ(machines_of(meeting), (std::vector<int>{0, 1}));
  meeting.others.clear();
  EXPECT_EQ(machines_of(meeting), std::vector<int>{0});
}

TEST(CommonClock, CountsFromRankZerosStartOnOneMachine) {
  FakeMeeting meeting;
  meeting.others["boot"] = {false, boot_id()};
  meeting.others["clock"] = {false, "5.5"};  // rank 0's
  const auto clock = common_clock(meeting);
  const double before = raw_clock();
  const double now = clock();
  EXPECT_GE(now, before - 5.5);
  EXPECT_LE(now, raw_clock() - 5.5);
}

TEST(CommonClock, StartsAtThisCallOnSeveralMachines) {
  FakeMeeting meeting;
  meeting.others["boot"] = {false, "another machine"};
  meeting.others["clock"] = {false, "5.5"};
  const double before = raw_clock();
  const auto clock = common_clock(meeting);
  const double now = clock();
  EXPECT_GE(now, 0);
  EXPECT_LE(now, raw_clock() - before);
}

TEST(CommonClock, RefusesWhatIsNotATime) {
  FakeMeeting meeting;
  meeting.others["clock"] = {false, "noon"};
  EXPECT_THAT([&] { (void)common_clock(meeting); },
              ThrowsMessage<meeting::PeerError>(AllOf(HasSubstr("rank 0"), HasSubstr("\"noon\""))));
}

TEST(RunAsProcess, RunsTheBodyBetweenJoiningAndLeaving) {
  const meeting::StoreServer server;
  const meeting::LaunchInfo launch = testing::launch_at(server, 0, 1);
  bool ran = false;
  run_as_process(launch, milliseconds(20000), [&](Rendezvous& rendezvous, std::unique_ptr<channel::Channel>& channel) {
    EXPECT_EQ(rendezvous.exchange("key", "value"), std::vector<std::string>{"value"});
    channel = std::move(channel::make_local_channels(1, milliseconds(20000)).front());
    ran = true;
  });
  EXPECT_TRUE(ran);
}

TEST(RunAsProcess, PassesOnWhatTheBodyThrows) {
  const meeting::StoreServer server;
  const meeting::LaunchInfo launch = testing::launch_at(server, 0, 1);
  EXPECT_THAT(
      [&] {
        run_as_process(launch, milliseconds(20000), [](Rendezvous&, std::unique_ptr<channel::Channel>&) {
          throw std::invalid_argument("no such layer");
        });
      },
      ThrowsMessage<std::invalid_argument>("no such layer"));
}

using ::testing::ElementsAre;
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
