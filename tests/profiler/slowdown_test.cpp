#include "profiler/slowdown.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/profiler/row_of_layers.h"

namespace stagecraft::profiler {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// What the threads that run a model record about themselves.
struct Runs {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::set<const void*> parameters;
  std::set<int> intra_op;
  int forwards = 0;
};

model::Model told_model(Runs& runs) {
  return row_of_layers(
      {hand_layer("scale", 256,
                  [&runs](const model::LayerCall& c) {
                    const std::scoped_lock lock(runs.mutex);
                    runs.threads.insert(std::this_thread::get_id());
                    runs.parameters.insert(c.parameters[0].const_data_ptr());
                    runs.intra_op.insert(at::get_num_threads());
                    ++runs.forwards;
                    return std::vector<at::Tensor>{at::mul(c.inputs[0], c.parameters[0])};
                  }),
       hand_layer("sum", 0, [](const model::LayerCall& c) { return std::vector<at::Tensor>{at::sum(c.inputs[0])}; })});
}

ProfileOptions options() {
  ProfileOptions out;
  out.threads = 1;
  out.warmup = 1;
  out.rule.most_seconds = 0;
  return out;
}

TEST(ConcurrentRanks, HaveACopyAndAThreadEach) {
  Runs runs;
  const model::Model model = told_model(runs);
  const auto batch = row_batch();
  const ProfileOptions one = options();
  EXPECT_GT(ranks_as_threads(model, batch, one)->time(3, 60), Seconds(0));
  EXPECT_EQ(runs.threads.size(), 3u);
  EXPECT_EQ(runs.parameters.size(), 3u);
  EXPECT_EQ(runs.intra_op, std::set<int>{1});
  EXPECT_FALSE(runs.threads.contains(std::this_thread::get_id()));
}

TEST(ConcurrentRanks, GiveASampleHoweverLittleTimeThereIs) {
  Runs runs;
  const model::Model model = told_model(runs);
  const auto batch = row_batch();
  ProfileOptions many = options();
  many.warmup = 1000;
  const auto ranks = ranks_as_threads(model, batch, many);
  EXPECT_GT(ranks->time(1, 0), Seconds(0));
  // One warm-up iteration, after which its time is up, and one that counts.
  EXPECT_EQ(runs.forwards, 2);
}

TEST(ConcurrentRanks, AreWarmAfterOneIterationTheSecondTime) {
  Runs runs;
  const model::Model model = told_model(runs);
  const auto batch = row_batch();
  ProfileOptions some = options();
  some.warmup = 20;
  const auto ranks = ranks_as_threads(model, batch, some);
  EXPECT_GT(ranks->time(1, 60), Seconds(0));
  EXPECT_EQ(runs.forwards, 20 + 5);  // 5 samples are enough, as options() takes no longer
  EXPECT_GT(ranks->time(1, 60), Seconds(0));
  EXPECT_EQ(runs.forwards, 20 + 5 + 1 + 5);
  EXPECT_EQ(runs.parameters.size(), 1u);
}

TEST(SlowdownOf, IsTheMedianRatioInsideRounds) {
  // The machine is twice as slow in the second round, which cancels: 1.5 and 2 in each of the two.
  EXPECT_EQ(slowdown_of({{{2_s, 3_s, 4_s}}, {{4_s, 6_s, 8_s}}}), (std::vector<double>{1, 1.5, 2}));
  // Ratios of two ranks 1.5, 4 and 1.75; the last round ended before three ranks: 3 and 2.
  EXPECT_EQ(slowdown_of({{{2_s, 3_s, 6_s}}, {{1_s, 4_s, 2_s}}, {{4_s, 7_s}}}), (std::vector<double>{1, 1.75, 2.5}));
  // No less than one rank fewer.
  EXPECT_EQ(slowdown_of({{{2_s, 1_s, 3_s}}, {{2_s, 1_s, 1_s}}}), (std::vector<double>{1, 1, 1}));
  EXPECT_TRUE(slowdown_of({}).empty());
}

TEST(SlowdownOf, LeavesOutRoundsThatOthersDisturbed) {
  const RoundOfRanks quiet{{2_s, 3_s}};
  const RoundOfRanks disturbed{{2_s, 8_s}, true};
  EXPECT_EQ(slowdown_of({disturbed, quiet, disturbed}), (std::vector<double>{1, 1.5}));
  EXPECT_EQ(slowdown_of({disturbed, disturbed}), (std::vector<double>{1, 4})) << "there is no other";
}

TEST(TimeTogether, AddsRatesWhereProcessorsAreShared) {
  // One rank with a processor to itself, two that share the other one, each for 6 s.
  const std::vector<std::vector<double>> samples = {{1, 1, 1, 1, 1, 1}, {2, 2, 2}, {2, 2, 1, 1}};
  EXPECT_DOUBLE_EQ(time_together(samples, false).value, 1);
  EXPECT_DOUBLE_EQ(time_together(samples, true).value, 3 / (1 + 3.0 / 6 + 4.0 / 6));
  EXPECT_DOUBLE_EQ(time_together({{}, {2}}, true).value, 4) << "the other one did not end an iteration";
}

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

/// Processor time, and what ranks were given.
struct FakeMachine {
  Seconds clock;
  Seconds ranks;   ///< of processors that worked for ranks
  Seconds others;  ///< of processors that worked for other programs
  std::vector<double> budgets;
};

/// An iteration of n ranks takes 1 + n seconds, and a turn a quarter of a second of a processor.
class FakeRanks : public ConcurrentRanks {
 public:
  explicit FakeRanks(FakeMachine& machine) : machine_(machine) {}
  Seconds time(int count, double seconds) override {
    machine_.budgets.push_back(seconds);
    machine_.ranks += Seconds(0.25);
    return Seconds(1 + count);
  }
  [[nodiscard]] Seconds other_processes_time() const override { return machine_.ranks; }

 private:
  FakeMachine& machine_;
};

struct Rounds {
  RankRounds result;
  std::vector<int> turns;
  std::vector<double> budgets;
};

/// Rounds of up to two ranks. In round i, which takes a second, other programs keep `others[i]` processors busy.
Rounds rounds_of_two(double seconds, const std::vector<double>& others, Seconds iteration = 1_s) {
  Rounds out;
  FakeMachine machine;
  std::size_t moments = 0;
  const auto now = [&]() -> device::ProcessorMoment {
    if (moments++ % 2 == 1) {
      machine.clock += 1_s;
      machine.others += Seconds(others.at(moments / 2 - 1));
    }
    return {machine.clock, {}, machine.ranks + machine.others};
  };
  const TimeLimit limit(seconds);
  out.result = run_rank_rounds([&] { return std::make_unique<FakeRanks>(machine); }, 2, iteration, limit,
                               [&](int count) { out.turns.push_back(count); }, now);
  out.budgets = machine.budgets;
  return out;
}

TEST(RunRankRounds, TakesTurnsInFiveQuietRounds) {
  const Rounds rounds = rounds_of_two(kUnlimited, std::vector<double>(5));
  EXPECT_THAT(rounds.turns, ElementsAre(1, 2, 1, 2, 1, 2, 1, 2, 1, 2));
  EXPECT_THAT(rounds.result.slowdown, ElementsAre(1, 1.5));  // 3 s / 2 s
  EXPECT_FALSE(rounds.result.disturbed);
  EXPECT_EQ(rounds.result.other_processes_time, Seconds(10 * 0.25));
}

TEST(RunRankRounds, DividesTheTimeAmongTheTurnsThatAreLeft) {
  // Ten turns are left before the first one, then nine and so on; the fakes take no time.
  const Rounds rounds = rounds_of_two(1000, std::vector<double>(5));
  ASSERT_THAT(rounds.budgets, SizeIs(10));
  for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(rounds.budgets[i], 1000.0 / static_cast<double>(10 - i), 1) << i;
}

TEST(RunRankRounds, RepeatsRoundsThatOthersDisturb) {
  const Rounds rounds = rounds_of_two(kUnlimited, {0.5, 0, 0, 0.5, 0, 0, 0});
  EXPECT_THAT(rounds.turns, SizeIs(2 * 7));
  EXPECT_FALSE(rounds.result.disturbed);
}

TEST(RunRankRounds, TellsOfTheLastRoundWhenAllTenAreDisturbed) {
  std::vector<double> others(10, 0.5);
  others.back() = 0.75;
  const Rounds rounds = rounds_of_two(kUnlimited, others);
  EXPECT_THAT(rounds.turns, SizeIs(2 * 10));
  EXPECT_THAT(rounds.result.slowdown, ElementsAre(1, 1.5)) << "there are no others";
  ASSERT_TRUE(rounds.result.disturbed);
  EXPECT_DOUBLE_EQ(rounds.result.disturbed->process_time.value, 0.5) << "of its two turns";
  EXPECT_DOUBLE_EQ(rounds.result.disturbed->machine_time->value, 1.25);
}

TEST(RunRankRounds, LeavesOutWhatItHasNoTimeFor) {
  // A turn of one rank needs two iterations, 200 s, a turn of two ranks four.
  const Rounds one = rounds_of_two(300, std::vector<double>(5), 100_s);
  EXPECT_THAT(one.turns, Each(1));
  EXPECT_THAT(one.turns, SizeIs(5));
  EXPECT_THAT(one.result.slowdown, ElementsAre(1));
  const Rounds none = rounds_of_two(100, {}, 100_s);
  EXPECT_THAT(none.turns, IsEmpty());
  EXPECT_THAT(none.result.slowdown, IsEmpty());
}

TEST(RunRankRounds, StartsNoRanksWithoutTime) {
  bool is_started = false;
  const auto start = [&]() -> std::unique_ptr<ConcurrentRanks> {
    is_started = true;
    return nullptr;
  };
  const TimeLimit over(0);
  (void)run_rank_rounds(start, 2, 1_s, over, [](int) {});
  EXPECT_FALSE(is_started);
}

TEST(InFlightSlowdown, IsTheMedianOfTheRoundsRatios) {
  // 1.5, 1.25 and, in a round that something interrupted, 4.
  EXPECT_DOUBLE_EQ(in_flight_factor_of({{2, 3}, {4, 5}, {1, 4}}), 1.5);
}

TEST(InFlightSlowdown, IsNeverASpeedup) { EXPECT_DOUBLE_EQ(in_flight_factor_of({{2, 1}, {4, 3}, {5, 4}}), 1); }

TEST(InFlightSlowdown, KnowsTheAvailableMemory) {
  // Any machine that builds this has more than 64 MiB, and less than an exbibyte.
  const auto bytes = available_memory();
  ASSERT_TRUE(bytes);
  EXPECT_GT(*bytes, Bytes(64 << 20));
  EXPECT_LT(*bytes, Bytes(std::int64_t{1} << 60));
}

}  // namespace
}  // namespace stagecraft::profiler
