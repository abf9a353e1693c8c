#include "costmodel/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/bound_plan.h"
#include "tests/support/chains.h"

namespace stagecraft::report {
namespace {

using testing::chain_graph;
using ::testing::ElementsAre;
using testing::flat_topology;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::one_layer_a_stage;

Prediction predicted(const Graph& graph, const Topology& topology, const std::vector<int>& replicas, int microbatches) {
  return std::get<Prediction>(
      predict(graph, topology, BoundPlan(one_layer_a_stage(graph, topology, replicas, "1f1b", microbatches))));
}

// Stages of 3 s each: of a step of 2 microbatches, 9 s, each is idle for one forward and backward, a third.
TEST(NextSteps, NameAnEmptyPipeline) {
  EXPECT_THAT(next_steps(predicted(chain_graph({1, 1}, {2, 2}), flat_topology(2), {1, 1}, 2)),
              ElementsAre("the pipeline is empty for 33.3 % of the step: try more --microbatches or --schedule best"));
}

// 3 and 6 s a microbatch: the second works 6 / 4.5 of the mean. Over 100 microbatches, the ranks are idle for 303 and 3
// of 603 s, 25.4 % on average; the uneven stages explain 25 % of it.
TEST(NextSteps, NameASlowStage) {
  EXPECT_THAT(next_steps(predicted(chain_graph({1, 2}, {2, 4}), flat_topology(2), {1, 1}, 100)),
              ElementsAre(HasSubstr("stage 1 works 33 % longer than the mean, so that the others wait: move a layer")));
}

// One replica's microbatch takes 3 s; a ring of two sums 400 B in 2 * 400 / (2 * 100) = 4 s, of a step of 7 s.
TEST(NextSteps, NameGradientsThatNothingHides) {
  EXPECT_THAT(next_steps(predicted(chain_graph({1}, {2}, 0_B, 400_B), flat_topology(2, 100), {2}, 2)),
              ElementsAre(HasSubstr("gradients are summed for 57.1 % of the step")));
}

TEST(NextSteps, NameDevicesWithoutWork) {
  EXPECT_THAT(next_steps(predicted(chain_graph({1}, {2}), flat_topology(3), {1}, 2)),
              ElementsAre(HasSubstr("2 of 3 devices are idle: 1,2 are not in any stage: try more --microbatches")));
}

TEST(NextSteps, SayNothingOfAStepThatLosesLittle) {
  EXPECT_THAT(next_steps(predicted(chain_graph({1}, {2}), flat_topology(1), {1}, 2)), IsEmpty());
  EXPECT_THAT(next_steps({}), IsEmpty());
}

}  // namespace
}  // namespace stagecraft::report
