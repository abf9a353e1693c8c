#include "costmodel/bound_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>

#include "tests/costmodel/interleavings.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using ::testing::ElementsAre;
using testing::flat_topology;
using testing::row_plan;

/// Stages of 2, 1 and 3 replicas: ranks 0-1, 2 and 3-5. Two values without gradients go from stage 0 to stage 2.
Plan skipping_plan() {
  Plan plan = row_plan("1f1b", {2, 1, 3}, 6);
  plan.stages[0].layers.push_back("mask");
  const Boundary skip{0, 2, {{"mask", 0, Bytes(8), {}, "bool", false}, {"mask", 1, Bytes(8), {}, "int64", false}}};
  plan.boundaries.insert(plan.boundaries.begin() + 1, skip);
  return plan;
}

TEST(BoundPlan, SaysWhoRunsWhat) {
  const BoundPlan bound(skipping_plan());
  EXPECT_EQ(bound.stages(), 3);
  EXPECT_EQ(bound.positions(), 3);
  EXPECT_EQ(bound.ranks().size(), 6u);
  EXPECT_EQ(bound.first_rank(0), 0);
  EXPECT_EQ(bound.first_rank(1), 2);
  EXPECT_EQ(bound.first_rank(2), 3);
  EXPECT_THAT(bound.ranks_of(2), ElementsAre(3, 4, 5));
  EXPECT_EQ(bound.replica_of(0, 5), 1);
  EXPECT_EQ(bound.replica_of(2, 5), 2);
  EXPECT_EQ(bound.runner(0, 5), 1);
  EXPECT_EQ(bound.runner(1, 5), 2);
  EXPECT_EQ(bound.runner(2, 4), 4);
}

TEST(BoundPlan, SaysWhatJoinsTwoStages) {
  const BoundPlan bound(skipping_plan());
  EXPECT_EQ(bound.boundary(0, 1), 0);
  EXPECT_EQ(bound.boundary(0, 2), 1);
  EXPECT_EQ(bound.boundary(2, 1), 2);
  EXPECT_EQ(bound.boundary(1, 1), std::nullopt);
  EXPECT_EQ(BoundPlan(row_plan("1f1b", {1, 1, 1}, 2)).boundary(0, 2), std::nullopt);
  EXPECT_THAT(bound.outgoing(0), ElementsAre(0, 1));
  EXPECT_THAT(bound.incoming(2), ElementsAre(1, 2));
  EXPECT_THAT(bound.incoming(0), ElementsAre());
  EXPECT_TRUE(bound.has_gradient(0));
  EXPECT_FALSE(bound.has_gradient(1));
}

TEST(BoundPlan, SaysWhatAnActionNeedsAndMakes) {
  const BoundPlan bound(skipping_plan());
  const Action forward{ActionKind::Forward, 2, 4, -1};
  ASSERT_EQ(bound.inputs(forward).size(), 2u);
  EXPECT_EQ(receive_of(forward, bound.inputs(forward)[0]), (Action{ActionKind::ReceiveActivation, 2, 4, 0}));
  EXPECT_EQ(receive_of(forward, bound.inputs(forward)[1]), (Action{ActionKind::ReceiveActivation, 2, 4, 1}));
  EXPECT_THAT(bound.outputs(forward), ElementsAre());
  // No gradient comes back over boundary 1, from stage 2 to stage 0.
  const Action backward{ActionKind::Backward, 2, 4, -1};
  EXPECT_THAT(bound.inputs(backward), ElementsAre());
  ASSERT_EQ(bound.outputs(backward).size(), 1u);
  const Action send = send_of(backward, bound.outputs(backward)[0]);
  EXPECT_EQ(send, (Action{ActionKind::SendGradient, 2, 4, 1}));
  EXPECT_EQ(producer_of(send), backward);
  EXPECT_EQ(other_end(send), (Action{ActionKind::ReceiveGradient, 1, 4, 2}));
  EXPECT_EQ(other_end(other_end(send)), send);
  EXPECT_TRUE(bound.is_message(backward, bound.outputs(backward)[0]));
  EXPECT_THAT(bound.inputs({ActionKind::WeightGradient, 2, 4, -1}), ElementsAre());
  EXPECT_THAT(bound.outputs({ActionKind::Update, 0, -1, -1}), ElementsAre());
  const BoundPlan interleaved(row_plan("interleaved-1f1b", {1, 1}, 4, 2));
  const Action first{ActionKind::Forward, 0, 0, -1};
  EXPECT_FALSE(interleaved.is_message(first, interleaved.outputs(first)[0])) << "both stages are on one rank";
}

TEST(BoundPlan, GivesEveryTensorATagForEachDirection) {
  // One tensor, two tensors, one tensor: 2 + 4 + 2 tags.
  const BoundPlan bound(skipping_plan());
  EXPECT_EQ(bound.tags(), 8);
  EXPECT_EQ(bound.tag(0, 0, false), 0);
  EXPECT_EQ(bound.tag(0, 0, true), 1);
  EXPECT_EQ(bound.tag(1, 0, false), 2);
  EXPECT_EQ(bound.tag(1, 1, true), 5);
  EXPECT_EQ(bound.tag(2, 0, false), 6);
}

TEST(BoundPlan, PutsSeveralStagesOnTheRanksOfAPosition) {
  Plan plan = row_plan("interleaved-1f1b", {1, 1, 1, 1}, 4, 2);
  plan.tied = {{"weight", {"l0", "l2"}}};
  const BoundPlan bound(plan);
  EXPECT_EQ(bound.positions(), 2);
  ASSERT_EQ(bound.ranks().size(), 2u);
  EXPECT_THAT(bound.ranks()[1].stages, ElementsAre(1, 3));
  EXPECT_THAT(bound.stages_at(0), ElementsAre(0, 2));
  EXPECT_EQ(bound.position_of(3), 1);
  EXPECT_EQ(bound.stage_of("l2"), 2);
  EXPECT_EQ(bound.stage_of("image"), std::nullopt);
  EXPECT_EQ(bound.first_rank(2), 0);
  EXPECT_EQ(bound.runner(3, 3), 1);
  EXPECT_EQ(bound.tied(), (std::vector<TiedHolders>{{"weight", 0, {0, 2}, {0}}}));
}

/// Layers l0 | l1 m1 | l2 | l3 in stages of 1, 2, 1 and 1 replicas: ranks 0, 1-2, 3 and 4.
Plan tied_plan(const std::vector<TiedLayers>& tied) {
  Plan plan = row_plan("1f1b", {1, 2, 1, 1}, 4);
  plan.stages[1].layers.push_back("m1");
  plan.tied = tied;
  return plan;
}

TEST(BoundPlan, SaysWhoHoldsTiedParametersAndReduces) {
  const BoundPlan bound(tied_plan({{"embedding", {"l0", "l3"}}, {"norm", {"l1", "m1"}}}));
  EXPECT_EQ(bound.tied(), (std::vector<TiedHolders>{{"embedding", 0, {0, 3}, {0, 4}}, {"norm", 1, {1}, {1, 2}}}));
  EXPECT_THAT(bound.reduce_groups(), ElementsAre(0, 1, 2, 0));
  EXPECT_TRUE(bound.reduces(0));
  EXPECT_TRUE(bound.reduces(1));  // its replicas
  EXPECT_FALSE(bound.reduces(2));
  EXPECT_TRUE(bound.reduces(3));
}

TEST(BoundPlan, JoinsReduceGroupsThroughAStageOfBoth) {
  // 1 with 2, and 0 with 2: all three stages reduce together.
  const BoundPlan bound(tied_plan({{"a", {"l1", "l2"}}, {"b", {"l0", "l2"}}}));
  EXPECT_THAT(bound.reduce_groups(), ElementsAre(0, 0, 0, 3));
  // A parameter of one stage without replicas needs no reduction.
  Plan plan = row_plan("1f1b", {1, 1}, 1);
  plan.stages[0].layers.push_back("m0");
  plan.tied = {{"a", {"l0", "m0"}}};
  EXPECT_FALSE(BoundPlan(plan).reduces(0));
}

TEST(BoundPlan, SumsEachSharedParameterOverItsOwnHolders) {
  // l0 and l1 share "a", l1 and l2 share "b", l1 and m1 share "c": stage 1 sums "a" with rank 0, then "b" with rank 3.
  const BoundPlan bound(tied_plan({{"a", {"l0", "l1"}}, {"b", {"l1", "l2"}}, {"c", {"l1", "m1"}}}));
  EXPECT_THAT(bound.shared(0), ElementsAre(0));
  EXPECT_THAT(bound.shared(1), ElementsAre(0, 1, 2)) << "its replicas sum \"c\" too";
  EXPECT_THAT(bound.shared(2), ElementsAre(1));
  EXPECT_THAT(bound.shared(3), ElementsAre());
  EXPECT_THAT(bound.tied()[0].ranks, ElementsAre(0, 1, 2));
  EXPECT_THAT(bound.tied()[1].ranks, ElementsAre(1, 2, 3));
  EXPECT_THAT(bound.reduce_groups(), ElementsAre(0, 0, 0, 3));
}

TEST(BoundPlan, GivesTheDevicesOfRanksInOrder) {
  Plan plan = row_plan("1f1b", {1, 2}, 4);
  plan.stages[0].devices = {2};
  plan.stages[1].devices = {1, 0};
  EXPECT_THAT(BoundPlan(plan).devices_of({0, 1}), ElementsAre(1, 2));
}

TEST(BoundPlan, SaysWhichMicrobatchesARankRuns) {
  // Replicas take turns; the numbers of an asynchronous schedule continue from step to step.
  const BoundPlan bound(row_plan("1f1b", {1, 2}, 5));
  EXPECT_THAT(bound.microbatches_of(0, 0, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(bound.microbatches_of(1, 1, 5), ElementsAre(0, 2, 4));
  EXPECT_THAT(bound.microbatches_of(1, 2, 5), ElementsAre(1, 3));
  EXPECT_THAT(bound.microbatches_of(1, 2, 5, 5), ElementsAre(5, 7, 9));
  EXPECT_THAT(bound.microbatches_of(1, 0, 5), ElementsAre());
}

TEST(BoundPlan, ListsAReduceOfTiedParameters) {
  Plan plan = row_plan("1f1b", {1, 1}, 1);
  plan.tied = {{"weight", {"l0", "l1"}}};
  const auto texts = [](const std::vector<Action>& list) {
    std::vector<std::string> out;
    for (const Action& action : list) out.push_back(action_text(action));
    return out;
  };
  const auto lists = BoundPlan(plan).action_lists();
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_THAT(texts(lists[0]), ElementsAre("0F0", "0SEND_F0", "0RECV_B0", "0B0", "0REDUCE_GRAD", "0UPDATE"));
  EXPECT_THAT(texts(lists[1]), ElementsAre("1RECV_F0", "1F0", "1B0", "1SEND_B0", "1REDUCE_GRAD", "1UPDATE"));
}

TEST(BoundPlan, ListsSeveralStepsOfAnAsynchronousScheduleAlone) {
  const BoundPlan bound(row_plan("pipedream", {1, 1}, 2));
  EXPECT_TRUE(bound.asynchronous());
  // Per microbatch: a forward, a backward and an update on both ranks, and two transfers with two ends each.
  std::size_t actions = 0;
  for (const auto& list : bound.action_lists(3)) actions += list.size();
  EXPECT_EQ(actions, 3u * 2u * (2 * 3 + 2 * 2));
  const BoundPlan flushed(row_plan("1f1b", {1, 1}, 2));
  EXPECT_FALSE(flushed.asynchronous());
  EXPECT_THROW((void)flushed.action_lists(2), std::invalid_argument);
  EXPECT_THROW((void)bound.action_lists(0), std::invalid_argument);
}

TEST(BoundPlan, RefusesAPlanThatIsNotValid) {
  Plan plan = row_plan("1f1b", {1, 1}, 2);
  plan.tied = {{"weight", {"l0", "l2"}}};
  try {
    static_cast<void>(BoundPlan(plan));
    FAIL();
  } catch (const std::invalid_argument& e) {
    EXPECT_STREQ(e.what(), "tied parameter \"weight\": layer \"l2\" is not in any stage");
  }
}

TEST(FirstRanks, CountTheReplicasOfEarlierPositions) {
  EXPECT_THAT(first_ranks({2, 1, 3}, 3, Placement::Loop), ElementsAre(0, 2, 3));
  // Stages 2 and 3 run on the ranks of 0 and 1.
  EXPECT_THAT(first_ranks({2, 1, 2, 1}, 2, Placement::Loop), ElementsAre(0, 2, 0, 2));
  EXPECT_THAT(first_ranks({2, 2, 2, 2}, 2, Placement::V), ElementsAre(0, 2, 2, 0));
}

TEST(RunnerOf, TakesTurnsOverTheStagesRanks) {
  // Three replicas on ranks 4, 5 and 6.
  EXPECT_EQ(runner_of(4, 3, 0), 4);
  EXPECT_EQ(runner_of(4, 3, 2), 6);
  EXPECT_EQ(runner_of(4, 3, 3), 4);
}

TEST(ComputeLists, AreThoseOfEveryReplicaOfEveryPosition) {
  // Two replicas take turns over three microbatches; the other stage runs them all.
  const std::vector<std::vector<Action>> lists =
      compute_lists(schedule_by_name("forward"), pipeline_shape(row_plan("forward", {2, 1}, 3)));
  using Kind = ActionKind;
  EXPECT_EQ(lists, (std::vector<std::vector<Action>>{
                       {{Kind::Forward, 0, 0, -1}, {Kind::Forward, 0, 2, -1}},
                       {{Kind::Forward, 0, 1, -1}},
                       {{Kind::Forward, 1, 0, -1}, {Kind::Forward, 1, 1, -1}, {Kind::Forward, 1, 2, -1}}}));
}

TEST(ReduceGroups, JoinOverSharedParameters) {
  std::vector<int> groups = separate_reduce_groups(5);
  EXPECT_THAT(groups, ElementsAre(0, 1, 2, 3, 4));
  join_reduce_groups(groups, {2});
  EXPECT_THAT(groups, ElementsAre(0, 1, 2, 3, 4));
  join_reduce_groups(groups, {1, 3});
  EXPECT_THAT(groups, ElementsAre(0, 1, 2, 1, 4));
  join_reduce_groups(groups, {0, 3, 4});  // 1 follows 3
  EXPECT_THAT(groups, ElementsAre(0, 0, 2, 0, 0));
}

TEST(BoundPlan, SurvivesCopyAndMove) {
  Plan plan = row_plan("listed", {1, 1}, 1);
  plan.listed = {{{ActionKind::Forward, 0, 0, -1}, {ActionKind::Backward, 0, 0, -1}},
                 {{ActionKind::Forward, 1, 0, -1}, {ActionKind::Backward, 1, 0, -1}}};
  auto first = std::make_optional<BoundPlan>(plan);
  const auto lists = first->action_lists();
  const BoundPlan copy = *first;
  const BoundPlan moved = std::move(*first);
  first.reset();
  for (const BoundPlan* bound : {&copy, &moved}) {
    EXPECT_EQ(bound->shape().listed.data(), bound->plan().listed.data());
    EXPECT_EQ(bound->action_lists(), lists);
  }
}

/// A chain of layers with random skips; random layers hold parameters.
Graph random_graph(std::mt19937& random, int layers) {
  const std::vector<double> times(static_cast<std::size_t>(layers), 1.0);
  Graph graph = chain_graph(times, times, Bytes(8), Bytes(1 << 10));
  for (int parameter = 0; parameter < 3; ++parameter) {
    for (Layer& layer : graph.layers) {
      if (random() % 4 == 0) layer.tied.push_back({"w" + std::to_string(2 - parameter), Bytes(16)});
    }
  }
  const int skips = static_cast<int>(random() % 3);
  for (int skip = 0; skip < skips; ++skip) {
    const int from = static_cast<int>(random() % static_cast<unsigned>(layers));
    const int to = static_cast<int>(random() % static_cast<unsigned>(layers));
    if (to > from + 1) graph.edges.push_back({from, to, 0});
  }
  return graph;
}

/// Stages that hold each parameter of the graph's layers, by parameter name.
std::map<std::string, std::set<int>> stages_of_parameters(const Graph& graph, const std::vector<int>& stage_of_layer) {
  std::map<std::string, std::set<int>> out;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    for (const TiedParameter& tied : graph.layers[i].tied) out[tied.name].insert(stage_of_layer[i]);
  }
  return out;
}

/// Stages reachable from `stage` through parameters that two stages share.
std::set<int> reduces_with(const std::map<std::string, std::set<int>>& holders, int stage) {
  std::set<int> out{stage};
  for (std::size_t before = 0; before != out.size();) {
    before = out.size();
    for (const auto& [name, stages] : holders) {
      if (std::ranges::any_of(stages, [&](int s) { return out.contains(s); })) out.insert(stages.begin(), stages.end());
    }
  }
  return out;
}

TEST(BoundPlan, AgreesWithTheGraphOnRandomPlans) {
  std::mt19937 random(11);
  int tied_plans = 0;
  for (int round = 0; round < 500; ++round) {
    const int layers = 2 + static_cast<int>(random() % 8);
    const Graph graph = random_graph(random, layers);
    const int stages = 1 + static_cast<int>(random() % static_cast<unsigned>(std::min(layers, 5)));
    Partition partition;
    for (int i = 0; i < layers; ++i) partition.stage_of_layer.push_back(i * stages / layers);
    int devices = 0;
    for (int s = 0; s < stages; ++s) {
      partition.replicas.push_back(1 + static_cast<int>(random() % 3));
      devices += partition.replicas.back();
    }
    PlanSettings settings;
    settings.microbatches = 1 + static_cast<int>(random() % 12);
    settings.schedule = std::vector<std::string>{"gpipe", "1f1b", "pipedream", "forward"}[random() % 4];
    const Plan plan = make_plan(graph, flat_topology(devices), partition, settings);
    const BoundPlan bound(plan);
    SCOPED_TRACE("round " + std::to_string(round) + ": " + plan.schedule);

    // Ranks are numbered stage by stage, replica by replica; make_plan assigns devices in the same order.
    const std::vector<RankRole>& roles = bound.ranks();
    ASSERT_EQ(static_cast<int>(roles.size()), devices);
    int rank = 0;
    for (int s = 0; s < stages; ++s) {
      ASSERT_EQ(bound.first_rank(s), rank);
      for (int r = 0; r < bound.replicas(s); ++r, ++rank) {
        ASSERT_EQ(bound.ranks_of(s)[static_cast<std::size_t>(r)], rank);
        ASSERT_EQ(roles[static_cast<std::size_t>(rank)].device, rank);
      }
      for (int m = 0; m < 2 * settings.microbatches; ++m) {
        const RankRole& role = roles[static_cast<std::size_t>(bound.runner(s, m))];
        ASSERT_EQ(role.stages, std::vector<int>{s});
        ASSERT_EQ(role.replica, bound.replica_of(s, m));
        const std::vector<int> microbatches =
            own_microbatches(2 * settings.microbatches, bound.replicas(s), role.replica);
        ASSERT_NE(std::find(microbatches.begin(), microbatches.end(), m), microbatches.end());
      }
    }

    std::set<int> tags;
    for (std::size_t b = 0; b < plan.boundaries.size(); ++b) {
      const Boundary& boundary = plan.boundaries[b];
      ASSERT_EQ(bound.boundary(boundary.source, boundary.destination), static_cast<int>(b));
      for (std::size_t t = 0; t < boundary.tensors.size(); ++t) {
        for (const bool gradient : {false, true}) tags.insert(bound.tag(static_cast<int>(b), t, gradient));
      }
    }
    ASSERT_EQ(static_cast<int>(tags.size()), bound.tags());
    if (!tags.empty()) {
      ASSERT_EQ(*tags.begin(), 0);
      ASSERT_EQ(*tags.rbegin(), bound.tags() - 1);
    }

    const auto holders = stages_of_parameters(graph, partition.stage_of_layer);
    const int steps = bound.asynchronous() ? 1 + static_cast<int>(random() % 3) : 1;
    const auto lists = bound.action_lists(steps, 1 + static_cast<int>(random() % 3));
    bool any_tied = false;
    for (int s = 0; s < stages; ++s) {
      const std::set<int> group = reduces_with(holders, s);
      ASSERT_EQ(bound.reduce_groups()[static_cast<std::size_t>(s)], *group.begin());
      ASSERT_EQ(bound.reduces(s), bound.replicas(s) > 1 || group.size() > 1);
      any_tied = any_tied || group.size() > 1;
      // Every update of a stage that reduces follows one of its Reduces; no other stage has any.
      for (const int r : bound.ranks_of(s)) {
        const auto& list = lists[static_cast<std::size_t>(r)];
        const auto count = [&](ActionKind kind) {
          return std::ranges::count_if(list, [&](const Action& a) { return a.kind == kind && a.stage == s; });
        };
        ASSERT_EQ(count(ActionKind::Reduce), bound.reduces(s) ? count(ActionKind::Update) : 0);
        if (!bound.asynchronous()) { ASSERT_EQ(count(ActionKind::Update), bound.schedule().trains ? 1 : 0); }
      }
    }
    if (any_tied) ++tied_plans;
  }
  EXPECT_GT(tied_plans, 100);
}

}  // namespace
}  // namespace stagecraft
