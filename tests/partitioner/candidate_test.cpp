#include "partitioner/candidate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "partitioner/cost_model.h"
#include "tests/support/chains.h"
#include "tests/support/refused.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

// Two layers, three devices.
const Graph kGraph = testing::chain_graph({1, 1}, {2, 2});
const Topology kThree = testing::flat_topology(3);

/// A cost model in which stage s of a plan needs 100 (s + 1) bytes.
CostModel told_memory() {
  CostModel out;
  out.predict = [](const Graph&, const Topology&, const BoundPlan& plan) {
    Prediction prediction;
    prediction.iteration = 7_s;
    for (int s = 0; s < plan.stages(); ++s) {
      StagePrediction& stage = prediction.stages.emplace_back();
      stage.stage = s;
      stage.memory.total = Bytes(std::int64_t{100} * (s + 1));
    }
    return std::variant<Prediction, Infeasible>(prediction);
  };
  out.memory = [](const Graph&, const Topology&, const BoundPlan& plan) {
    return PlanMemory{{}, Bytes(std::int64_t{100} * plan.stages())};
  };
  return out;
}

Candidate two_stages() {
  Candidate out;
  out.partition = {{0, 1}, {1, 1}};
  return out;
}

TEST(MicrobatchesOfAStep, AreTheSettingsWhereStepsEnd) {
  PlanSettings settings;
  settings.microbatches = 6;
  settings.schedule = "gpipe";
  EXPECT_EQ(microbatches_of_a_step(settings), 6);
  settings.schedule = "pipedream";  // its steps never end
  EXPECT_EQ(microbatches_of_a_step(settings), std::nullopt);
}

TEST(PlanOfCandidate, PutsStagesInOrderUnlessToldOtherwise) {
  Candidate candidate = two_stages();
  candidate.partition.replicas = {2, 1};
  candidate.steady_state = 3_s;
  Plan plan = plan_of_candidate(kGraph, kThree, candidate, {});
  EXPECT_THAT(plan.stages[0].devices, ElementsAre(0, 1));
  EXPECT_THAT(plan.stages[1].devices, ElementsAre(2));
  EXPECT_EQ(plan.steady_state, 3_s);
  candidate.devices = {{2, 0}, {1}};
  candidate.warmups = {4, 0};
  plan = plan_of_candidate(kGraph, kThree, candidate, {});
  EXPECT_THAT(plan.stages[0].devices, ElementsAre(2, 0));
  EXPECT_THAT(plan.warmups, ElementsAre(4, 0));
}

TEST(PlanOfCandidate, RefusesDevicesThatAreNotThereOrTwice) {
  Candidate candidate = two_stages();
  candidate.devices = {{0}, {3}};
  EXPECT_THAT(testing::refused([&] { return plan_of_candidate(kGraph, kThree, candidate, {}); }), HasSubstr("3"));
  candidate.devices = {{1}, {1}};
  EXPECT_NE(testing::refused([&] { return plan_of_candidate(kGraph, kThree, candidate, {}); }), "");
}

TEST(PredictedPlan, CarriesWhereItIsFromAndWhatIsPredicted) {
  Candidate candidate = two_stages();
  candidate.endless = true;
  const RankedPlan found = predicted_plan("by hand, 2", kGraph, kThree, candidate, told_memory(), {});
  EXPECT_EQ(found.origin, "by hand, 2");
  EXPECT_EQ(found.plan.strategy, "by hand, 2");
  EXPECT_EQ(found.plan.iteration, 7_s);
  EXPECT_EQ(found.prediction.iteration, 7_s);
  EXPECT_TRUE(found.endless);
  EXPECT_TRUE(found.fits);
  Constraints constraints;
  constraints.memory_limit = 199_B;
  EXPECT_FALSE(predicted_plan("", kGraph, kThree, candidate, told_memory(), constraints).fits);
}

TEST(PredictedPlan, ThrowsForListsThatNeverEnd) {
  CostModel costs = told_memory();
  costs.predict = [](const Graph&, const Topology&, const BoundPlan&) {
    return std::variant<Prediction, Infeasible>(Infeasible{"a circle"});
  };
  EXPECT_THAT([&] { (void)predicted_plan("", kGraph, kThree, two_stages(), costs, {}); },
              ThrowsMessage<std::runtime_error>("a circle"));
}

TEST(MemoryLimit, IsTheSmallerOfTheDevicesAndTheOneAskedFor) {
  Topology topology = kThree;
  Constraints constraints;
  EXPECT_EQ(memory_limit(topology, constraints), std::nullopt);
  constraints.memory_limit = 10_B;
  EXPECT_EQ(memory_limit(topology, constraints), 10_B);
  topology.device.memory = 8_B;
  EXPECT_EQ(memory_limit(topology, constraints), 8_B);
  topology.device.memory = 12_B;
  EXPECT_EQ(memory_limit(topology, constraints), 10_B);
  EXPECT_EQ(memory_limit(topology, {}), 12_B);
}

TEST(MemoryExcess, NamesTheNeediestStageAboveTheLimit) {
  const RankedPlan ranked = predicted_plan("", kGraph, kThree, two_stages(), told_memory(), {});
  Constraints constraints;
  EXPECT_EQ(memory_excess(ranked, kThree, constraints), "");
  constraints.memory_limit = 200_B;  // just enough for stage 1
  EXPECT_EQ(memory_excess(ranked, kThree, constraints), "");
  constraints.memory_limit = 50_B;  // too little for either
  EXPECT_THAT(memory_excess(ranked, kThree, constraints),
              AllOf(HasSubstr("stage 1"), HasSubstr("200 B"), HasSubstr("50 B")));
}

TEST(RankOne, GivesTheOnePlanThatFits) {
  bool again = false;
  const auto other = [&](const Graph&, const Topology&) {
    again = true;
    return std::optional<Candidate>();
  };
  const StrategyResult found = rank_one("by hand", kGraph, kThree, two_stages(), told_memory(), {}, other);
  ASSERT_EQ(std::get<Ranking>(found).plans.size(), 1u);
  EXPECT_EQ(std::get<Ranking>(found).plans[0].origin, "by hand");
  EXPECT_FALSE(again);
}

// One stage needs 100 bytes, two need 200: on more devices the same request becomes one stage, which would fit.
TEST(RankOne, SuggestsOtherCandidatesThatFit) {
  Constraints constraints;
  constraints.memory_limit = 150_B;
  const auto more = [](const Graph&, const Topology& topology) -> std::optional<Candidate> {
    if (device_count(topology) <= 3) return std::nullopt;
    Candidate out;
    out.partition = {{0, 0}, {1}};
    return out;
  };
  const StrategyResult found = rank_one("by hand", kGraph, kThree, two_stages(), told_memory(), constraints, more);
  EXPECT_THAT(std::get<Infeasible>(found).reason,
              AllOf(HasSubstr("stage 1 "), HasSubstr("200 B"), HasSubstr("6 devices instead of 3 (100 B)")));
  const auto none = [](const Graph&, const Topology&) { return std::optional<Candidate>(); };
  const StrategyResult nothing = rank_one("by hand", kGraph, kThree, two_stages(), told_memory(), constraints, none);
  EXPECT_THAT(std::get<Infeasible>(nothing).reason, ::testing::Not(HasSubstr("would")));
}

// Layers of 3, 6, 9 and 12 s, forward plus backward.
const Graph kFourLayers = testing::chain_graph({1, 2, 3, 4}, {2, 4, 6, 8});

Partition halves() { return {{0, 0, 1, 1}, {1, 1}}; }

TEST(SplitCandidate, TakesTheSlowestStageForItsSteadyState) {
  const Candidate found = split_candidate(kFourLayers, {"l2"}, {});
  EXPECT_THAT(found.partition.stage_of_layer, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(found.partition.replicas, ElementsAre(1, 1));
  EXPECT_EQ(found.steady_state, 21_s);  // 9 + 12, after 3 + 6
  EXPECT_THAT(found.devices, IsEmpty());
  EXPECT_THAT(found.warmups, IsEmpty());
  EXPECT_EQ(split_candidate(kFourLayers, {}, {}).steady_state, 30_s);
}

TEST(SplitCandidate, DividesAStageByItsReplicas) {
  EXPECT_EQ(split_candidate(kFourLayers, {"l2"}, {1, 2}).steady_state, 10.5_s);
  EXPECT_EQ(split_candidate(kFourLayers, {"l2"}, {1, 3}).steady_state, 9_s);  // now the first stage is the slower
}

TEST(SplitCandidate, CountsNoReplicasWithoutAMicrobatch) {
  EXPECT_EQ(split_candidate(kFourLayers, {"l2"}, {1, 7}, 2).steady_state, 10.5_s);
  EXPECT_EQ(split_candidate(kFourLayers, {"l2"}, {1, 7}, 2).partition.replicas[1], 7);
  EXPECT_EQ(split_candidate(kFourLayers, {"l2"}, {1, 7}, 1).steady_state, 21_s);
}

TEST(SplitCandidate, ListsTheLayersForAnUnknownOne) {
  EXPECT_THAT(testing::refused([] { return split_candidate(kFourLayers, {"l9"}, {}); }),
              AllOf(HasSubstr("\"l9\""), HasSubstr("l0, l1, l2, l3")));
}

TEST(SplitCandidate, WantsReplicasForEveryStage) {
  EXPECT_THAT(testing::refused([] { return split_candidate(kFourLayers, {"l2"}, {2, 1, 1}); }),
              AllOf(HasSubstr("replicas"), HasSubstr("3 numbers"), HasSubstr("2 stages")));
  EXPECT_EQ(split_candidate(kFourLayers, {"l2"}, {2}).partition.replicas, (std::vector<int>{2, 2}));
}

TEST(GivenCandidate, KeepsDevicesAndWarmUps) {
  const Candidate found = given_candidate(kFourLayers, {{0, 0, 1, 1}, {2, 1}}, {{4, 1}, {0}}, {3, 0}, {});
  EXPECT_THAT(found.devices, ElementsAre(ElementsAre(4, 1), ElementsAre(0)));
  EXPECT_THAT(found.warmups, ElementsAre(3, 0));
  EXPECT_EQ(found.steady_state, 21_s);
}

TEST(GivenCandidate, TakesReplicasForThoseOfThePartitionButNotBesideDevices) {
  EXPECT_THAT(given_candidate(kFourLayers, halves(), {}, {}, {3, 1}).partition.replicas, ElementsAre(3, 1));
  EXPECT_THAT(testing::refused([] { return given_candidate(kFourLayers, halves(), {{0}, {1}}, {}, {3, 1}); }),
              HasSubstr("replicas"));
}

TEST(GivenCandidate, LeavesOutInputs) {
  Graph graph = kFourLayers;
  graph.layers[0].kind = kInputKind;
  EXPECT_EQ(given_candidate(graph, {{-1, 0, 0, 0}, {1}}, {}, {}, {}).steady_state, 27_s);  // 30 - 3 for the input
}

/// Two stages of one layer with parameters of 1 GiB, one device each.
class Proof : public ::testing::Test {
 protected:
  Proof() {
    constraints_.plan.microbatches = 2;
    Candidate candidate;
    candidate.partition = {{0, 1}, {1, 1}};
    ranked_ = predicted_plan("by hand", graph_, topology_, candidate, simulated_costs(), constraints_);
  }
  /// The plan with its own lists, without the action.
  void list_without(const Action& action) {
    auto lists = BoundPlan(ranked_.plan).action_lists();
    for (auto& list : lists) {
      std::erase_if(list, [&](const Action& a) { return a.kind == ActionKind::Update || a == action; });
    }
    ranked_.plan.schedule = "listed";
    ranked_.plan.listed = std::move(lists);
  }

  Graph graph_ = testing::chain_graph({1, 1}, {2, 2}, 1000_B, 1_GiB);
  Topology topology_ = testing::flat_topology(2);
  Constraints constraints_;
  RankedPlan ranked_;
};

TEST_F(Proof, FindsNothingWrongWithAPlanThatWasPredicted) {
  EXPECT_EQ(refutation(ranked_, graph_, topology_), std::nullopt);
  EXPECT_NO_THROW(check_proved(ranked_, graph_, topology_, "graph.json"));
  list_without({});
  EXPECT_EQ(refutation(ranked_, graph_, topology_), std::nullopt);
}

TEST_F(Proof, NamesTheActionThatIsMissing) {
  list_without({ActionKind::Backward, 1, 1, -1});
  EXPECT_THAT([&] { check_proved(ranked_, graph_, topology_, "graph.json"); },
              ThrowsMessage<NoAnswerError>("graph.json: the plan is not proved: rank 1 lacks 1B1"));
  EXPECT_EQ(refutation(ranked_, graph_, topology_)->kind, ErrorKind::Unprovable);
}

/// Parameters and gradients alone are 2 GiB.
TEST_F(Proof, ChecksTheMemoryOfDevicesUnlessTheStrategyHasItsOwnRule) {
  topology_.device.memory = 1_GiB;
  EXPECT_THAT([&] { check_proved(ranked_, graph_, topology_, "graph.json"); },
              ThrowsMessage<NoAnswerError>(HasSubstr("graph.json: the plan is not proved: rank 0 needs up to 2")));
  EXPECT_EQ(refutation(ranked_, graph_, topology_)->kind, ErrorKind::DoesNotFit);
  ranked_.fits = false;
  EXPECT_EQ(refutation(ranked_, graph_, topology_), std::nullopt);
}

}  // namespace
}  // namespace stagecraft::partitioner
