#include "costmodel/prediction/unmeasured.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "costmodel/accuracy/intervals.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using testing::flat_topology;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::one_layer_a_stage;
using ::testing::SizeIs;

class UnmeasuredParts : public ::testing::Test {
 protected:
  UnmeasuredParts() { graph_.quality.emplace().clock = "host"; }
  [[nodiscard]] BoundPlan plan() const { return BoundPlan(one_layer_a_stage(graph_, topology_, {1, 1}, "1f1b", 2)); }
  Graph graph_ = chain_graph({1, 1}, {1, 1}, Bytes(500));
  Topology topology_ = flat_topology(2, 1000);
};

TEST_F(UnmeasuredParts, AreTheSlowdownsThatThePlanNeeds) {
  const auto lacking = unmeasured(graph_, topology_, plan());
  ASSERT_THAT(lacking, SizeIs(2));
  EXPECT_THAT(lacking[0].text, HasSubstr("slowdown of 2 ranks on a host"));
  EXPECT_THAT(lacking[0].text, HasSubstr("--concurrent 2"));
  EXPECT_THAT(lacking[1].text, HasSubstr("several microbatches in flight"));
  graph_.slowdown = {1, 1.5};
  EXPECT_THAT(unmeasured(graph_, topology_, plan()), SizeIs(1));
  graph_.in_flight_slowdown = InFlightSlowdown{4, 1.1};
  EXPECT_THAT(unmeasured(graph_, topology_, plan()), IsEmpty());
}

TEST_F(UnmeasuredParts, AreNoneOfAGraphThatNoProfileOfACpuMade) {
  graph_.quality->clock = "cupti";
  EXPECT_THAT(unmeasured(graph_, topology_, plan()), IsEmpty());
  graph_.quality.reset();
  EXPECT_THAT(unmeasured(graph_, topology_, plan()), IsEmpty());
}

TEST_F(UnmeasuredParts, WidenTheInterval) {
  // Independent of the other errors: logarithms of half-widths add in quadrature.
  const auto half = [&] {
    const auto result = predict_with_intervals(graph_, topology_, plan(), std::nullopt);
    const auto& prediction = std::get<Prediction>(result);
    return std::log(*prediction.high / prediction.iteration);
  };
  graph_.slowdown = {1, 1};
  graph_.in_flight_slowdown = InFlightSlowdown{4, 1};
  const double whole = half();
  graph_.in_flight_slowdown.reset();
  EXPECT_NEAR(half(), std::hypot(whole, std::log(1.1)), 1e-9);
  graph_.slowdown.clear();
  EXPECT_NEAR(half(), std::hypot(whole, std::log(1.1), std::log(1.25)), 1e-9);
}

Graph graph_with_waits(std::int64_t host_wait_ns) {
  Graph graph;
  graph.quality = ProfileQuality{};
  graph.quality->watched_ns = 1000;
  graph.quality->host_wait_ns = host_wait_ns;
  return graph;
}

TEST(Launches, AreWaitedForInMoreThan5Of1000Nanoseconds) {
  EXPECT_FALSE(waits_for_launches(graph_with_waits(5)));
  EXPECT_TRUE(waits_for_launches(graph_with_waits(6)));
}

TEST(Launches, AreNotWaitedForWithoutAProfile) {
  EXPECT_FALSE(waits_for_launches(Graph()));
  Graph unprofiled;
  unprofiled.quality = ProfileQuality{};
  EXPECT_FALSE(waits_for_launches(unprofiled));
}

TEST(Launches, AreNotedWithTheirShareOfAStep) {
  EXPECT_THAT(
      launches_text(graph_with_waits(47)),
      ::testing::StartsWith("the GPU waits for kernel launches in 4.7 % of a step, so the step depends on the host"));
  EXPECT_EQ(launches_text(graph_with_waits(0)), "");
}

}  // namespace
}  // namespace stagecraft
