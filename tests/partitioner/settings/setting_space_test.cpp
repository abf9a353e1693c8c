#include "partitioner/settings/setting_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::ElementsAre;

/// Two layers with 64 B of parameters each, in microbatches of 2 samples.
SettingSpace two_layers(const std::vector<std::string>& schedules) {
  Graph graph = testing::chain_graph({1, 1}, {2, 2}, 100_B, 64_B);
  graph.microbatch_samples = 2;
  SettingSpace out;
  out.graphs = {{graph, 4, ""}};
  out.schedules = schedules;
  return out;
}

std::vector<std::string> texts(const SettingSpace& space, const Topology& topology) {
  std::vector<std::string> out;
  for (const StepSettings& settings : settings_of(space, topology)) out.push_back(settings_text(settings, space));
  return out;
}

// A 4th, 16th and 64th of 128 B.
TEST(SettingSpace, TriesBucketsWhereDevicesSumGradients) {
  const SettingSpace space = two_layers({"1f1b", "zb-h1"});
  EXPECT_THAT(texts(space, testing::flat_topology(2)),
              ElementsAre("4 microbatches of 2 samples, 1f1b", "4 microbatches of 2 samples, 1f1b, buckets of 32 B",
                          "4 microbatches of 2 samples, 1f1b, buckets of 8 B",
                          "4 microbatches of 2 samples, 1f1b, buckets of 2 B", "4 microbatches of 2 samples, zb-h1"));
  EXPECT_THAT(texts(space, testing::flat_topology(1)),
              ElementsAre("4 microbatches of 2 samples, 1f1b", "4 microbatches of 2 samples, zb-h1"));
  SettingSpace tied = two_layers({"zb-h1"});
  for (Layer& layer : tied.graphs[0].graph.layers) layer.tied = {{"shared", 64_B}};
  EXPECT_EQ(texts(tied, testing::flat_topology(2)).size(), 4U);
}

TEST(SettingSpace, TriesRecomputationWhereMemoryIsLimited) {
  SettingSpace space = two_layers({"gpipe", "forward"});
  space.buckets = false;
  space.constraints.memory_limit = 1000_B;
  EXPECT_THAT(
      texts(space, testing::flat_topology(2)),
      ElementsAre("4 microbatches of 2 samples, gpipe", "4 microbatches of 2 samples, gpipe, recompute stages",
                  "4 microbatches of 2 samples, gpipe, recompute every 1", "4 microbatches of 2 samples, forward"));
  space.recomputation = false;
  space.constraints.plan.recompute = true;
  space.constraints.plan.recompute_every = 3;
  space.schedules = {"gpipe"};
  EXPECT_THAT(texts(space, testing::flat_topology(2)),
              ElementsAre("4 microbatches of 2 samples, gpipe, recompute every 3"));
}

TEST(SettingSpace, KnowsWhatIsPlain) {
  SettingSpace space = two_layers({"1f1b"});
  space.constraints.memory_limit = 1000_B;
  int plain = 0;
  for (const StepSettings& settings : settings_of(space, testing::flat_topology(2)))
    plain += is_plain(settings, space) ? 1 : 0;
  EXPECT_EQ(plain, 1);
}

}  // namespace
}  // namespace stagecraft::partitioner
