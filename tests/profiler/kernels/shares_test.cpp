#include "profiler/kernels/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <stdexcept>

#include "costmodel/index.h"

namespace stagecraft::profiler {
namespace {

Attributed work(std::int64_t layer, std::int64_t begin_ns, std::int64_t end_ns, std::int64_t launched_ns = 1,
                Phase phase = Phase::Forward) {
  return {{.begin_ns = begin_ns, .end_ns = end_ns}, {.layer = layer, .phase = phase}, launched_ns};
}

LayerPhase forward(std::int64_t layer) { return {layer, Phase::Forward}; }

std::int64_t total(const StepShares& step) {
  std::int64_t out = 0;
  for (const auto& [part, time] : step.parts) out += time.share_ns();
  return out;
}

TEST(Shares, GiveAnIdleGapToTheWorkThatEndsIt) {
  const StepShares step = shares({work(0, 10, 30), work(1, 50, 60)}, 0, 100);
  EXPECT_EQ(step.parts.at(forward(0)).gap_ns, 10);
  EXPECT_EQ(step.parts.at(forward(0)).busy_ns, 20);
  EXPECT_EQ(step.parts.at(forward(1)).gap_ns, 20);
  EXPECT_EQ(step.parts.at(forward(1)).share_ns(), 30);
  EXPECT_EQ(step.unattributed_ns(), 40);  // after the last activity
  EXPECT_EQ(step.work_ns, 30);
  EXPECT_EQ(total(step), 100);
}

TEST(Shares, DivideAnInstantAmongTheLayersAtWork) {
  // 0..10 layer 0 alone, 10..20 both, 20..30 layer 1 alone.
  const StepShares step = shares({work(0, 0, 20), work(1, 10, 30)}, 0, 30);
  EXPECT_EQ(step.parts.at(forward(0)).active_ns, 15);
  EXPECT_EQ(step.parts.at(forward(1)).active_ns, 15);
  EXPECT_EQ(step.parts.at(forward(0)).busy_ns, 20);
  EXPECT_EQ(step.parts.at(forward(1)).busy_ns, 20);
}

TEST(Shares, CountTwoKernelsOfOneLayerAtOnceOnce) {
  const StepShares step = shares({work(0, 0, 20), work(0, 10, 30), work(1, 10, 20)}, 0, 30);
  EXPECT_EQ(step.parts.at(forward(0)).busy_ns, 30);
  EXPECT_EQ(step.parts.at(forward(0)).active_ns, 25);
  EXPECT_EQ(step.parts.at(forward(0)).activities, 2);
  EXPECT_EQ(step.parts.at(forward(1)).active_ns, 5);
}

TEST(Shares, GiveNanosecondsThatDoNotDivideToEachInTurn) {
  // Two layers together for 1 ns, three times: 2 and 1, never 3 and 0.
  const StepShares step =
      shares({work(0, 0, 1), work(1, 0, 1), work(0, 2, 3), work(1, 2, 3), work(0, 4, 5), work(1, 4, 5)}, 0, 5);
  EXPECT_EQ(step.parts.at(forward(0)).active_ns + step.parts.at(forward(1)).active_ns, 3);
  EXPECT_EQ(std::abs(step.parts.at(forward(0)).active_ns - step.parts.at(forward(1)).active_ns), 1);
}

TEST(Shares, CutWorkAtTheStepsEndsAndLeaveOutTheRest) {
  const StepShares step = shares({work(5, 0, 5), work(0, 5, 15), work(1, 18, 30), work(6, 40, 50)}, 10, 20);
  EXPECT_EQ(step.parts.size(), 2U);
  EXPECT_EQ(step.parts.at(forward(0)).share_ns(), 5);
  EXPECT_EQ(step.parts.at(forward(1)).share_ns(), 5);  // 3 idle, 2 active
}

TEST(Shares, DistinguishDataFromUnattributedWork) {
  const StepShares step =
      shares({work(0, 5, 10, 1, Phase::Data), work(3, 12, 20, 1, Phase::None), work(0, 20, 30)}, 0, 30);
  EXPECT_EQ(step.data_wait_ns(), 10);
  EXPECT_EQ(step.unattributed_ns(), 10);
  EXPECT_EQ(step.share_of(forward(0)), 10);
}

TEST(Shares, CountAccumulationAsBackward) {
  const StepShares step = shares({work(2, 0, 5, 1, Phase::Backward), work(2, 5, 9, 1, Phase::Accumulate)}, 0, 9);
  EXPECT_EQ(step.share_of({2, Phase::Backward}), 9);
}

TEST(Shares, TellAccumulationsAndTheGapsBeforeThemApart) {
  // 0..4 backward, idle, 6..9 accumulation, idle, 10..12 backward, 12..13 accumulation.
  const StepShares step = shares({work(2, 0, 4, 1, Phase::Backward), work(2, 6, 9, 1, Phase::Accumulate),
                                  work(2, 10, 12, 1, Phase::Backward), work(2, 12, 13, 1, Phase::Accumulate)},
                                 0, 13);
  const PartTime& part = step.parts.at({2, Phase::Backward});
  EXPECT_EQ(part.share_ns(), 13);
  EXPECT_EQ(part.accumulating_ns, 4);
  EXPECT_EQ(part.accumulating_gap_ns, 2);
}

TEST(Shares, TellWhyTheDeviceWasIdle) {
  // Launched after the previous activity had ended; launched before that, with a gap of 1 us; launched before that,
  // with a gap of 5 us.
  const StepShares step =
      shares({work(0, 0, 100), work(1, 150, 200, 120), work(2, 1200, 1300, 110), work(3, 6300, 6400, 115)}, 0, 6400);
  EXPECT_EQ(step.gaps.host_wait_ns, 50);
  EXPECT_EQ(step.gaps.kernel_wait_ns, 1000);
  EXPECT_EQ(step.gaps.other_ns, 5000);
}

TEST(Shares, RefuseAStepThatEndsBeforeItBegins) { EXPECT_THROW((void)shares({}, 2, 1), std::invalid_argument); }

/// Counted nanosecond by nanosecond: which parts are active, and which is next.
struct ByHand {
  std::map<LayerPhase, double> active;
  std::map<LayerPhase, std::int64_t> busy, gap;
  std::int64_t nobody_gap = 0;
};

ByHand by_hand(const std::vector<Attributed>& activities, std::int64_t begin, std::int64_t end) {
  ByHand out;
  for (std::int64_t t = begin; t < end; ++t) {
    std::set<LayerPhase> at_work;
    for (const Attributed& a : activities) {
      if (a.activity.begin_ns <= t && t < a.activity.end_ns) at_work.insert({a.tag.layer, a.tag.phase});
    }
    for (const LayerPhase& part : at_work) {
      out.active[part] += 1.0 / static_cast<double>(at_work.size());
      ++out.busy[part];
    }
    if (!at_work.empty()) continue;
    const auto next = std::ranges::find_if(
        activities, [&](const Attributed& a) { return a.activity.begin_ns > t && a.activity.begin_ns < end; });
    if (next == activities.end()) {
      ++out.nobody_gap;
    } else {
      ++out.gap[{next->tag.layer, next->tag.phase}];
    }
  }
  return out;
}

TEST(Shares, EqualACountOfEveryNanosecond) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<Attributed> activities;
    const int count = to_int(random() % 12);
    for (int i = 0; i < count; ++i) {
      const auto begin = static_cast<std::int64_t>(random() % 80);
      activities.push_back(
          work(static_cast<std::int64_t>(random() % 3), begin, begin + static_cast<std::int64_t>(random() % 30)));
      activities.back().activity.stream = static_cast<std::uint32_t>(random() % 3);
    }
    std::ranges::sort(activities, {}, [](const Attributed& a) {
      return std::tuple(a.activity.begin_ns, a.activity.end_ns, a.activity.stream);
    });
    const StepShares step = shares(activities, 10, 90);
    const ByHand expected = by_hand(activities, 10, 90);
    EXPECT_EQ(total(step), 80) << "round " << round;
    EXPECT_EQ(step.gaps.host_wait_ns + step.gaps.kernel_wait_ns + step.gaps.other_ns, 80 - step.work_ns);
    for (const auto& [part, time] : step.parts) {
      const auto value = [&](const auto& map) { return map.contains(part) ? map.at(part) : 0; };
      EXPECT_EQ(time.busy_ns, value(expected.busy)) << "round " << round;
      // Each interval with k active layers rounds by less than one nanosecond; there are at most 24 intervals.
      EXPECT_NEAR(static_cast<double>(time.active_ns), value(expected.active), 24) << "round " << round;
      if (part.phase == Phase::None) {
        EXPECT_EQ(time.gap_ns, expected.nobody_gap) << "round " << round;
      } else {
        EXPECT_EQ(time.gap_ns, value(expected.gap)) << "round " << round;
      }
    }
  }
}

TEST(Debias, ScalesGapsAndLeavesWork) {
  // 100 ns: 40 active and 60 idle; 70 ns unprofiled: the 60 become 30.
  const StepShares step = debias(shares({work(0, 20, 40), work(1, 60, 80)}, 0, 100), 70);
  EXPECT_EQ(step.share_of(forward(0)), 10 + 20);
  EXPECT_EQ(step.share_of(forward(1)), 10 + 20);
  EXPECT_EQ(step.unattributed_ns(), 10);
  EXPECT_EQ(step.end_ns - step.begin_ns, 70);
}

TEST(Debias, ScalesTheGapsOfAccumulations) {
  // 20 ns: 8 of work, 12 idle, of which 8 before the accumulation; 14 ns unprofiled: the 12 become 6, the 8 become 4.
  const StepShares step =
      debias(shares({work(0, 4, 8, 1, Phase::Backward), work(0, 16, 20, 1, Phase::Accumulate)}, 0, 20), 14);
  EXPECT_EQ(step.parts.at({0, Phase::Backward}).accumulating_ns, 4);
  EXPECT_EQ(step.parts.at({0, Phase::Backward}).accumulating_gap_ns, 4);
  EXPECT_EQ(step.share_of({0, Phase::Backward}), 14);
}

TEST(Debias, ScalesAccumulationsWithAllOtherWork) {
  // 8 ns of work in 10, 4 unprofiled: everything is divided by 2.5.
  const StepShares step =
      debias(shares({work(0, 0, 3, 1, Phase::Backward), work(0, 5, 10, 1, Phase::Accumulate)}, 0, 10), 4);
  EXPECT_EQ(step.parts.at({0, Phase::Backward}).accumulating_ns, 2);
  EXPECT_EQ(step.parts.at({0, Phase::Backward}).accumulating_gap_ns, 0);  // 0.8 ns, rounded down
}

TEST(Debias, ScalesEverythingAndSaysSoWhereWorkAloneTookLonger) {
  bool scaled = false;
  const StepShares step = debias(shares({work(0, 0, 60), work(1, 80, 100)}, 0, 100), 50, &scaled);
  EXPECT_TRUE(scaled);
  EXPECT_EQ(step.share_of(forward(0)), 30);
  EXPECT_EQ(step.share_of(forward(1)), 20);
  EXPECT_EQ(step.parts.at(forward(0)).busy_ns, 30);
  EXPECT_EQ(step.work_ns, 40);
}

TEST(Debias, GivesTimeThatNoGapCanTakeToNobody) {
  EXPECT_EQ(debias(shares({work(0, 0, 60)}, 0, 60), 70).unattributed_ns(), 10);
}

TEST(Debias, KeepsTheIdentityToTheNanosecond) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<Attributed> activities;
    std::int64_t now = 0;
    for (int i = 0; i < 10; ++i) {
      now += static_cast<std::int64_t>(random() % 50);
      const auto end = now + static_cast<std::int64_t>(random() % 50);
      activities.push_back(work(i % 4, now, end));
      now = end;
    }
    const auto plain = static_cast<std::int64_t>(random() % 1000);
    bool scaled = false;
    const StepShares step = debias(shares(activities, 0, now + 5), plain, &scaled);
    EXPECT_EQ(total(step), plain) << "round " << round;
    // If everything is scaled, the total and each part are rounded down separately.
    EXPECT_NEAR(static_cast<double>(step.gaps.host_wait_ns + step.gaps.kernel_wait_ns + step.gaps.other_ns),
                static_cast<double>(plain - step.work_ns), scaled ? 1 : 0)
        << "round " << round;
  }
}

}  // namespace
}  // namespace stagecraft::profiler
