#include "profiler/rank_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace stagecraft::profiler {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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

}  // namespace
}  // namespace stagecraft::profiler
