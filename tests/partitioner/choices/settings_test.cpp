#include "partitioner/choices/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

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
  const SettingSpace space = two_layers({"1f1b", "forward"});
  EXPECT_THAT(texts(space, testing::flat_topology(2)),
              ElementsAre("4 microbatches of 2 samples, 1f1b", "4 microbatches of 2 samples, 1f1b, buckets of 32 B",
                          "4 microbatches of 2 samples, 1f1b, buckets of 8 B",
                          "4 microbatches of 2 samples, 1f1b, buckets of 2 B", "4 microbatches of 2 samples, forward"));
  EXPECT_THAT(texts(space, testing::flat_topology(1)),
              ElementsAre("4 microbatches of 2 samples, 1f1b", "4 microbatches of 2 samples, forward"));
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

/// A layer that takes 10 s and 1 s per sample.
Graph measured(std::int64_t samples) {
  Graph out = testing::chain_graph({10.0 + static_cast<double>(samples)}, {0});
  out.layers[0].outputs[0].shape = {samples, 3};
  out.microbatch_samples = samples;
  return out;
}

std::vector<std::int64_t> sizes(const SizedGraphs& found) {
  std::vector<std::int64_t> out;
  for (const SizedGraph& sized : found.graphs) out.push_back(*sized.graph.microbatch_samples);
  return out;
}

TEST(SizedGraphs, HasEveryDivisorBetweenTheProfiles) {
  const SizedGraphs found = sized_graphs({measured(12), measured(2)}, 24);
  EXPECT_THAT(sizes(found), ElementsAre(2, 3, 4, 6, 8, 12));
  EXPECT_THAT(found.graphs[0].origin, HasSubstr("measured with microbatches of 2 samples"));
  EXPECT_THAT(found.graphs[3].origin, HasSubstr("interpolated between profiles with microbatches of 2 and 12 samples"));
  EXPECT_EQ(found.graphs[3].graph.layers[0].forward.median, 16_s);
  EXPECT_EQ(found.graphs[3].microbatches, 4);
  EXPECT_TRUE(found.graphs[5].is_measured);
  EXPECT_FALSE(found.graphs[3].is_measured);
  EXPECT_THAT(found.notes,
              ElementsAre(HasSubstr("only microbatches of 2 to 12 samples are tried: for smaller or larger "
                                    "others, add profiles with other sizes by --more-graphs")));
  EXPECT_THAT(sized_graphs({measured(1), measured(4)}, 4).notes, IsEmpty());
}

TEST(SizedGraphs, HasOneSizeOfOneProfile) {
  const SizedGraphs found = sized_graphs({measured(4)}, 8);
  EXPECT_THAT(sizes(found), ElementsAre(4));
  EXPECT_THAT(found.notes, ElementsAre(HasSubstr("only microbatches of 4 samples are tried: for others")));
}

TEST(SizedGraphs, LeavesOutWhatCannotBeInterpolated) {
  Graph larger = measured(4);
  larger.layers[0].outputs[0].shape = {4, 4};  // of 2 samples: 3 1/3
  const SizedGraphs found = sized_graphs({measured(1), larger}, 4);
  EXPECT_THAT(sizes(found), ElementsAre(1, 4));
  EXPECT_THAT(found.notes, ElementsAre(HasSubstr("microbatches of 2 samples are left out: dimension 1 of an output of "
                                                 "layer \"l0\" would be 3.3")));
}

TEST(SizedGraphs, SaysWhyThereIsNone) {
  const auto refuses = [](const std::vector<Graph>& profiles, std::int64_t batch, const std::string& message) {
    EXPECT_THAT([&] { (void)sized_graphs(profiles, batch); }, ThrowsMessage<std::invalid_argument>(HasSubstr(message)));
  };
  refuses({measured(4), measured(6)}, 7,
          "no microbatch of 4 to 6 samples divides --global-batch 7; choose a global batch that is a multiple of 4, or "
          "add profiles with other sizes by --more-graphs");
  refuses({measured(1)}, std::int64_t{1} << 40, "a step would have 1099511627776, at most 1048576 are possible");
  refuses({measured(4), measured(4)}, 8, "there are two profiles with microbatches of 4 samples");
  Graph unknown = measured(4);
  unknown.microbatch_samples.reset();
  refuses({unknown}, 8, "does not give the samples of its microbatch");
  Graph other = measured(8);
  other.name = "other";
  refuses({measured(4), other}, 8, "has a different model");
}

}  // namespace
}  // namespace stagecraft::partitioner
