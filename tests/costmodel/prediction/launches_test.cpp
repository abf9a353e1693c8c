#include "costmodel/prediction/launches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagecraft {
namespace {

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
