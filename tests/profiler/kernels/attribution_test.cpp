#include "profiler/kernels/attribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <stdexcept>

#include "costmodel/index.h"

namespace stagecraft::profiler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Tag kForward{.layer = 3, .phase = Phase::Forward};
const Tag kBackward{.layer = 3, .phase = Phase::Backward};

/// One kernel of 10 ns, launched at 100 by thread 1 and run from 200, for `kForward`.
KernelTrace one_kernel() {
  KernelTrace trace;
  trace.activities = {{.begin_ns = 200, .end_ns = 210, .stream = 7, .correlation = 9}};
  trace.calls = {{.correlation = 9, .thread = 1, .begin_ns = 100, .end_ns = 120}};
  trace.ids = {{9, encode(kForward)}};
  trace.changes = {{1, 50, encode(kForward)}};
  return trace;
}

TEST(Attribution, GivesAKernelToTheIdOfItsCorrelation) {
  const AttributedTrace out = attribute(one_kernel());
  ASSERT_EQ(out.activities.size(), 1U);
  EXPECT_EQ(out.activities[0].tag, kForward);
  EXPECT_EQ(out.activities[0].launched_ns, 100);
  EXPECT_EQ(out.quality.attributed, 1);
  EXPECT_EQ(out.quality.attributed_ns, 10);
  EXPECT_EQ(out.quality.busy_ns, 10);
  EXPECT_THAT(distrust(out.quality), IsEmpty());
}

TEST(Attribution, DoesNotTrustATraceWithoutWork) {
  EXPECT_THAT(distrust(attribute({}).quality), ElementsAre("no device work was recorded"));
}

TEST(Attribution, CountsWorkWithoutAnId) {
  KernelTrace trace = one_kernel();
  trace.activities.push_back({.begin_ns = 300, .end_ns = 330, .correlation = 10});
  trace.calls.push_back({.correlation = 10, .thread = 2, .begin_ns = 250, .end_ns = 260});
  const AttributedTrace out = attribute(trace);
  EXPECT_EQ(out.activities[1].tag, Tag{});
  EXPECT_EQ(out.quality.activities, 2);
  EXPECT_EQ(out.quality.attributed, 1);
  EXPECT_EQ(out.quality.attributed_ns, 10);
  EXPECT_EQ(out.quality.busy_ns, 10 + 30);
  EXPECT_THAT(distrust(out.quality),
              ElementsAre("1 of 2 pieces of device work do not belong to a layer (25.0000 % of the time is covered)"));
}

TEST(Attribution, NamesEachReasonForDistrust) {
  struct Case {
    const char* says;
    void (*spoil)(KernelTrace&);
  };
  const Case cases[] = {
      {"3 records were dropped", [](KernelTrace& t) { t.dropped = 3; }},
      {"2 records could not be read", [](KernelTrace& t) { t.unknown = 2; }},
      {"1 of 1 pieces of device work have no timestamp", [](KernelTrace& t) { t.activities[0].begin_ns = 0; }},
      {"end before they begin", [](KernelTrace& t) { t.activities[0].end_ns = 150; }},
      {"begin before they were launched", [](KernelTrace& t) { t.calls[0].begin_ns = 201; }},
      {"have no launch in the trace", [](KernelTrace& t) { t.calls.clear(); }},
      {"have an id of one layer but a launch in another",
       [](KernelTrace& t) { t.changes.push_back({1, 60, encode(kBackward)}); }},
      {"have an id of one layer but a launch in another",
       [](KernelTrace& t) { t.ids.push_back({9, encode(kBackward)}); }},
      {"captured before the trace", [](KernelTrace& t) { t.activities[0].graph_node = 5; }},
  };
  for (const Case& tested : cases) {
    KernelTrace trace = one_kernel();
    tested.spoil(trace);
    EXPECT_THAT(distrust(attribute(trace).quality), ::testing::Contains(HasSubstr(tested.says)));
  }
}

TEST(Attribution, LeavesBadTimesInWithoutLength) {
  KernelTrace trace = one_kernel();
  trace.activities[0].end_ns = 150;
  const AttributedTrace out = attribute(trace);
  EXPECT_EQ(out.activities[0].activity.end_ns, out.activities[0].activity.begin_ns);
  EXPECT_EQ(out.quality.busy_ns, 0);
}

TEST(Attribution, TakesTheNodeOfACudaGraphForReplays) {
  KernelTrace trace = one_kernel();
  trace.activities[0].graph_node = 5;
  trace.graph_nodes[5] = encode(kBackward);
  const AttributedTrace out = attribute(trace);
  EXPECT_EQ(out.activities[0].tag, kBackward);
  EXPECT_THAT(distrust(out.quality), IsEmpty());
}

TEST(Attribution, TakesTheLastChangeOfTheLaunchingThread) {
  KernelTrace trace = one_kernel();
  // A change by another thread, one after the launch, and two at the time of the launch, of which the last counts.
  trace.changes = {
      {2, 90, encode(kBackward)}, {1, 101, encode(kBackward)}, {1, 100, encode(kBackward)}, {1, 100, encode(kForward)}};
  EXPECT_EQ(attribute(trace).quality.disagreements, 0);
}

TEST(Attribution, TakesTheEarliestCallOfACorrelationAsLaunch) {
  // A runtime call and the driver call inside it share a correlation id.
  KernelTrace trace = one_kernel();
  trace.calls.insert(trace.calls.begin(), {.correlation = 9, .thread = 1, .begin_ns = 105, .end_ns = 110});
  EXPECT_EQ(attribute(trace).activities[0].launched_ns, 100);
}

TEST(Attribution, DoesNotDependOnTheOrderOfRecords) {
  std::mt19937_64 random(20261121);
  KernelTrace trace;
  for (std::uint32_t i = 1; i <= 200; ++i) {
    const auto time = static_cast<std::int64_t>(i) * 100;
    const Tag tag{static_cast<std::int64_t>(random() % 5), Phase::Forward};
    trace.changes.push_back({i % 3, time - 60, encode(tag)});
    trace.calls.push_back({i, i % 3, time - 50, time - 40});
    trace.ids.push_back({i, encode(tag)});
    trace.activities.push_back({.begin_ns = time,
                                .end_ns = time + static_cast<std::int64_t>(random() % 300),
                                .stream = static_cast<std::uint32_t>(random() % 2),
                                .correlation = i});
  }
  const AttributedTrace sorted = attribute(trace);
  EXPECT_THAT(distrust(sorted.quality), IsEmpty());
  for (int round = 0; round < 20; ++round) {
    std::ranges::shuffle(trace.activities, random);
    std::ranges::shuffle(trace.calls, random);
    std::ranges::shuffle(trace.ids, random);
    std::ranges::shuffle(trace.changes, random);
    EXPECT_EQ(attribute(trace), sorted);
  }
}

TEST(Quality, AddsUpOverTraces) {
  TraceQuality sum = attribute(one_kernel()).quality;
  KernelTrace other = one_kernel();
  other.ids.clear();
  other.changes.clear();
  other.dropped = 4;
  sum += attribute(other).quality;
  EXPECT_EQ(sum.activities, 2);
  EXPECT_EQ(sum.attributed, 1);
  EXPECT_EQ(sum.busy_ns, 20);
  EXPECT_EQ(sum.attributed_ns, 10);
  EXPECT_EQ(sum.dropped, 4);
}

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
