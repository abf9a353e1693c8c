#include "costmodel/simulation/repetition.h"

#include <gtest/gtest.h>

#include <vector>

namespace stagecraft::simulation {
namespace {

/// The state at 10 s, and 100 s later.
Snapshot earlier() {
  return {.now = Seconds(10), .microbatch = 4, .next = {3}, .counts = {1, 0}, .times = {Seconds(-2)}, .rates = {0.5}};
}
Snapshot later() {
  Snapshot out = earlier();
  out.now = Seconds(110);
  out.microbatch = 6;
  out.next = {5};
  return out;
}

TEST(IsRepeated, ComparesCountsExactly) {
  EXPECT_TRUE(is_repeated(earlier(), later()));
  Snapshot other = later();
  other.counts[1] = 1;
  EXPECT_FALSE(is_repeated(earlier(), other));
  other.counts = {1};
  EXPECT_FALSE(is_repeated(earlier(), other));
}

TEST(IsRepeated, ComparesTimesRelativeToThePeriod) {
  // The tolerance is 1e-10 of 100 s: 1e-8 s.
  Snapshot other = later();
  other.times = {Seconds(-2 + 0.9e-8)};
  EXPECT_TRUE(is_repeated(earlier(), other));
  other.times = {Seconds(-2 - 1.1e-8)};
  EXPECT_FALSE(is_repeated(earlier(), other));
  other.times = {Seconds(-2), Seconds(0)};
  EXPECT_FALSE(is_repeated(earlier(), other));
}

TEST(IsRepeated, ComparesRates) {
  Snapshot other = later();
  other.rates = {0.5 + 0.9e-10};
  EXPECT_TRUE(is_repeated(earlier(), other));
  other.rates = {0.5 - 1.1e-10};
  EXPECT_FALSE(is_repeated(earlier(), other));
}

TEST(IsRepeated, NeedsTimeToPass) {
  Snapshot other = later();
  other.now = earlier().now;
  EXPECT_FALSE(is_repeated(earlier(), other));
}

using Lists = std::vector<std::vector<Action>>;

std::vector<Action> forwards(int count) {
  std::vector<Action> out;
  for (int m = 0; m < count; ++m) out.push_back({ActionKind::Forward, 0, m, -1});
  return out;
}

TEST(ListsRepeat, IfTheyContinueWithLaterMicrobatches) {
  // From entry 1 to entry 3 two microbatches pass; entries 3 and 4 are 1 and 2 with microbatches higher by 2.
  const Snapshot from{.microbatch = 1, .next = {1}};
  const Snapshot to{.microbatch = 3, .next = {3}};
  EXPECT_TRUE(lists_repeat(Lists{forwards(5)}, from, to));
  // Of the next period one entry is missing.
  EXPECT_FALSE(lists_repeat(Lists{forwards(4)}, from, to));
  Lists other{forwards(5)};
  other[0][4].kind = ActionKind::Backward;
  EXPECT_FALSE(lists_repeat(other, from, to));
  other = {forwards(5)};
  other[0][4].microbatch = 3;
  EXPECT_FALSE(lists_repeat(other, from, to));
}

TEST(ListsRepeat, OnlyIfEachRankDoesSomething) {
  const Lists lists{forwards(5), forwards(5)};
  EXPECT_FALSE(lists_repeat(lists, {.microbatch = 1, .next = {1, 2}}, {.microbatch = 2, .next = {2, 2}}));
  EXPECT_TRUE(lists_repeat(lists, {.microbatch = 1, .next = {1, 2}}, {.microbatch = 2, .next = {2, 3}}));
}

TEST(ListsRepeat, NotOverAnUpdate) {
  Lists lists{{{ActionKind::Update, 0, -1, -1}, {ActionKind::Update, 0, -1, -1}}};
  EXPECT_FALSE(lists_repeat(lists, {.microbatch = 0, .next = {0}}, {.microbatch = 0, .next = {1}}));
}

/// Adds the state of a run of one rank after `microbatch` of its microbatches, of 2 s each.
void add(Repetition& repetition, int microbatch, std::int64_t count) {
  Snapshot& out = repetition.add();
  EXPECT_TRUE(out.next.empty() && out.counts.empty() && out.times.empty() && out.rates.empty());
  out.now = Seconds(2.0 * microbatch);
  out.microbatch = microbatch;
  out.next.push_back(static_cast<std::size_t>(microbatch));
  out.counts.push_back(count);
}

TEST(Repetition, FindsTheShortestPeriod) {
  const Lists lists{forwards(20)};
  Repetition repetition;
  const std::int64_t counts[] = {0, 7, 8, 7, 8, 7};
  for (int m = 0; m < 3; ++m) {
    add(repetition, m, counts[m]);
    EXPECT_FALSE(repetition.find(lists));
  }
  for (int m = 3; m < 6; ++m) {
    add(repetition, m, counts[m]);
    const auto period = repetition.find(lists);
    ASSERT_TRUE(period);
    EXPECT_EQ(period->from, Seconds(2.0 * (m - 2)));
    EXPECT_EQ(period->to, Seconds(2.0 * m));
    EXPECT_EQ(period->microbatches, 2);
    EXPECT_EQ(period->begin, std::vector<std::size_t>{static_cast<std::size_t>(m) - 2});
    EXPECT_EQ(period->end, std::vector<std::size_t>{static_cast<std::size_t>(m)});
  }
}

TEST(Repetition, ForgetsWhatIsMoreThanTheMostCyclesAgo) {
  const Lists lists{forwards(100)};
  const auto finds = [&](int cycles) {
    Repetition repetition;
    for (int m = 0; m < cycles; ++m) add(repetition, m, m);
    add(repetition, cycles, 0);  // as at first
    return repetition.find(lists).has_value();
  };
  const int most = static_cast<int>(Repetition::kMostCycles);
  EXPECT_TRUE(finds(most));
  EXPECT_FALSE(finds(most + 1));
}

}  // namespace
}  // namespace stagecraft::simulation
