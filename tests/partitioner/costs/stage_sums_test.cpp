#include "partitioner/costs/stage_sums.h"

#include <gtest/gtest.h>

#include "costmodel/format/files/files.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/index.h"
#include "partitioner/candidate.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/strategies/list_strategies.h"
#include "tests/support/places.h"

namespace stagecraft::partitioner {
namespace {

TEST(PeakBytes, AddsMicrobatchesInFlight) {
  const StageBytes stage{100_B, 50_B, 10_B, 3_B, 2_B};
  // 100 + 50 + 4 * 10 + 3 + 2 + 7.
  EXPECT_EQ(peak_bytes(stage, 4, true, 7_B), 202_B);
}

// Before the first backward has ended there are four microbatches and no gradients, after it three and all gradients.
TEST(PeakBytes, TakesTheLargerOfBeforeAndAfterTheFirstBackward) {
  const StageBytes many_gradients{100_B, 50_B, 10_B, 3_B, 2_B};
  EXPECT_EQ(peak_bytes(many_gradients, 4, false, 7_B), 100_B + 50_B + 30_B + 5_B);
  const StageBytes few_gradients{100_B, 5_B, 10_B, 3_B, 2_B};
  EXPECT_EQ(peak_bytes(few_gradients, 4, false, 7_B), 100_B + 40_B + 5_B + 7_B);
  // Twice the activations of that moment, where they were not measured.
  EXPECT_EQ(peak_bytes(many_gradients, 4, false, 7_B, 2), 100_B + 50_B + 2 * 35_B);
  EXPECT_EQ(peak_bytes(few_gradients, 4, false, 7_B, 2), 100_B + 5_B + 2 * 35_B);
  // Of a single microbatch nothing is left beside the gradients.
  EXPECT_EQ(peak_bytes(many_gradients, 1, false, 7_B), 100_B + 50_B);
}

// Of 4 microbatches, 20 B each are loaded, of 3 after the first backward; only activations count twice.
TEST(PeakBytes, AddsWhatIsLoaded) {
  StageBytes stage{100_B, 50_B, 10_B, 3_B, 2_B};
  stage.loaded = 20_B;
  EXPECT_EQ(peak_bytes(stage, 4, true, 7_B, 2), 100_B + 50_B + 2 * 52_B + 80_B);
  EXPECT_EQ(peak_bytes(stage, 4, false, 7_B), 100_B + 50_B + 30_B + 5_B + 60_B);
  stage.gradients = 5_B;
  EXPECT_EQ(peak_bytes(stage, 4, false, 7_B), 100_B + 40_B + 5_B + 7_B + 80_B);
}

// In the order of the stage, the second layer needs 50 B less the 20 B that the third saves. In another order, the
// first is known to need at least 40 B less all that the others save.
TEST(StageWorkspace, IsWhatALayerNeedsBeyondLaterOnes) {
  StageWorkspace stage;
  stage.add(0, 40_B, 10_B);
  EXPECT_EQ(stage.most, 40_B);
  stage.add(1, 50_B, 5_B);
  EXPECT_EQ(stage.most, 50_B);
  stage.add(2, 1_B, 20_B);
  EXPECT_EQ(stage.most, 30_B);
  StageWorkspace other;
  other.add(2, 1_B, 20_B);
  other.add(0, 40_B, 10_B);
  EXPECT_EQ(other.most, 20_B);
  other.add(1, 50_B, 5_B);
  EXPECT_EQ(other.most, 20_B) << "50 B less 30 B";
}

TEST(StageBytesSum, KeepsTheLargestSegment) {
  StageBytes sum{1_B, 2_B, 3_B, 4_B, 5_B};
  sum += StageBytes{10_B, 20_B, 30_B, 40_B, 3_B};
  EXPECT_EQ(sum, (StageBytes{11_B, 22_B, 33_B, 44_B, 5_B}));
}

/// On a GPU a plan needs 15 % and 4.7 GiB more than its tensors, which the bound must not forget: with and without
/// recomputation, it is within 4 % of what the cost model says of a transformer.
TEST(LeastMemory, IsCloseToThatOfATransformerOnGpus) {
  const Graph graph = format::read_graph(source_folder() + "/examples/h100/gpt-medium.json");
  const Topology topology = format::read_topology(source_folder() + "/examples/dgx-h100.json");
  for (const int every : {-1, 0, 1}) {
    PlanSettings settings;
    settings.microbatches = 64;
    settings.recompute = every >= 0;
    settings.recompute_every = std::max(0, every);
    const PipelineCosts costs(graph, topology, settings);
    Constraints constraints;
    constraints.plan = settings;
    for (const int stages : {1, 2, 4, 8}) {
      constraints.stages = stages;
      for (const int replicas : {1, 4}) {
        constraints.replicas.assign(to_index(stages), replicas);
        const auto candidate = std::get<Candidate>(profile_candidate(graph, topology, constraints));
        const BoundPlan plan(plan_of_candidate(graph, topology, candidate, settings));
        const Bytes peak = simulated_costs().memory(graph, topology, plan).peak;
        const Bytes least = costs.least_memory(costs.split_of(candidate.partition, 1));
        EXPECT_LE(least, peak);
        EXPECT_GE(static_cast<double>(least.value), 0.96 * static_cast<double>(peak.value))
            << stages << " stages of " << replicas << ", recompute every " << every;
      }
    }
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
