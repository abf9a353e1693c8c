#include "partitioner/choices/reasons.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "partitioner/choices/listing.h"
#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Two layers of 3 s that each save 100 B. With four microbatches of gpipe: on two devices both layers 12 s and a layer
/// on each 15 s, with 400 B; on one device 24 s with 800 B.
Graph two_layers() {
  Graph graph = testing::chain_graph({1, 1}, {2, 2});
  for (Layer& layer : graph.layers) {
    layer.saved_bytes = 100_B;
    layer.workspace_bytes = 0_B;
  }
  return graph;
}

class Reasons : public ::testing::Test {
 protected:
  Question question(Constraints constraints) {
    constraints.plan.microbatches = 4;
    constraints.plan.schedule = "gpipe";
    return {graph_, topology_, costs_, constraints, {}, {}};
  }
  static RankedPlan best(const Question& question) {
    return gather(question.graph, question.topology, question.costs, question.constraints, question.options)
        .plans.front();
  }
  Graph graph_ = two_layers();
  Topology topology_ = testing::flat_topology(2);
  CostModel costs_ = simulated_costs();
};

TEST_F(Reasons, StepPartsAreThoseOfExplain) {
  // A layer on each device: each computes 4 * 3 of 15 s.
  PlanSettings settings;
  settings.microbatches = 4;
  settings.schedule = "gpipe";
  const Plan plan = make_plan(graph_, topology_, {{0, 1}, {1, 1}}, settings);
  const auto parts = step_parts(graph_, topology_, plan);
  ASSERT_TRUE(parts.has_value());
  EXPECT_DOUBLE_EQ(parts->compute.value, 12);
  EXPECT_DOUBLE_EQ(parts->bubble.value, 3);
}

TEST_F(Reasons, AConstraintBindsIfThePlanIsBetterWithoutIt) {
  Constraints two;
  two.stages = 2;  // 15 s instead of 12
  two.memory_limit = 500_B;
  const Question asked = question(two);
  const std::vector<format::Relaxation> found = relaxations(asked, best(asked));
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].change, "without the limit of 500 B per device");
  EXPECT_FALSE(found[0].better);
  EXPECT_EQ(found[0].step, 15_s);
  EXPECT_EQ(found[1].change, "without --stages 2");
  EXPECT_TRUE(found[1].better);
  EXPECT_EQ(found[1].step, 12_s);
  // Two stages of two replicas: (2 + 1) * 3 = 9 s.
  EXPECT_EQ(found[2].change, "with 4 devices instead of 2");
  EXPECT_TRUE(found[2].better);
  EXPECT_EQ(found[2].step, 9_s);
}

TEST_F(Reasons, TheMemoryLimitAndTheThroughputCanBind) {
  Constraints tight;
  tight.memory_limit = 300_B;
  tight.plan.recompute = true;  // two devices of both layers: 2 * 8 s, 200 B; a layer on each: (4 + 1) * 4 s
  const Question recomputed = question(tight);
  EXPECT_FALSE(relaxations(recomputed, best(recomputed))[0].better);
  graph_.microbatch_samples = 2;
  Question fast = question({});
  fast.options.fewer_devices = true;
  fast.options.recomputation = true;
  fast.goal = {Objective::Memory, 0.6};  // 8 samples in 12 s are 0.67, in 15 s 0.53
  RankedPlan first =
      chosen(gather(graph_, topology_, costs_, fast.constraints, fast.options).plans, {false, 1, fast.goal, {}})
          .front();
  EXPECT_EQ(merits(first).memory, 400_B);
  const auto found = relaxations(fast, first);
  EXPECT_EQ(found[0].change, "without --min-throughput 0.6");
  EXPECT_TRUE(found[0].better);  // recomputed layer by layer: 100 B
}

TEST_F(Reasons, SmallestChangesAreTried) {
  topology_ = testing::flat_topology(1);
  Constraints tight;
  tight.memory_limit = 500_B;
  // On one device 800 B, at most 816 (2 % more); recomputed as a whole 200 B, layer by layer 100 B, both 32 s; two
  // devices 400 B.
  EXPECT_THAT(smallest_changes(question(tight)), ElementsAre("816 B of memory per device instead of 500 B",
                                                             "--recompute: step 32.0 s", "2 devices instead of 1"));
  tight.memory_limit = 150_B;
  EXPECT_THAT(smallest_changes(question(tight)), Contains("--recompute-every 1: step 32.0 s"));
  tight.memory_limit = 10_B;
  EXPECT_THAT(smallest_changes(question(tight)), ElementsAre("816 B of memory per device instead of 10 B"));
}

TEST_F(Reasons, MoreStagesAreOneOfTheChanges) {
  Constraints one;
  one.stages = 1;
  one.memory_limit = 450_B;
  GatherOptions uniform;
  uniform.strategy = "uniform";
  Question asked = question(one);
  asked.options = uniform;
  // One stage of one device needs 800 B, at most 816, two 400 B each; more devices do not help a single stage.
  EXPECT_THAT(smallest_changes(asked),
              AllOf(Contains("--stages 2 instead of 1"), Contains("816 B of memory per device instead of 450 B")));
}

TEST_F(Reasons, TextNamesThePartsThatDiffer) {
  const Question asked = question({});
  const Gathered gathered = gather(graph_, topology_, costs_, asked.constraints, {});
  format::PlanList list = plan_list(gathered.plans, gathered, {});
  for (std::size_t i = 0; i < list.plans.size(); ++i)
    list.plans[i].parts = step_parts(graph_, topology_, gathered.plans[i].plan);
  list.relaxations = {
      {"without --stages 2", 6_s, true}, {"without --chunks 1", 12_s, false}, {"with 4 devices", {}, false}};
  // Plans of 12, 15 and 24 s: computing 12, 12 and 24 s.
  EXPECT_THAT(
      reasons_text(list, "", 80),
      AllOf(
          HasSubstr("plan 1 vs plan 2: bubble -3.00 s; plan 2's step is 25.0 % longer\n"),
          HasSubstr("plan 1 vs plan 3: compute -12.0 s, on 2 devices instead of 1; plan 3's step is 100.0 % longer\n"),
          HasSubstr("without --stages 2 the best plan's step is 6.00 s (-50.0 %): the constraint binds\n"),
          HasSubstr("without --chunks 1 no plan is better\n"), HasSubstr("with 4 devices no plan is possible\n")));
}

}  // namespace
}  // namespace stagecraft::partitioner
