#include "profiler/kernels/attribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

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

}  // namespace
}  // namespace stagecraft::profiler
