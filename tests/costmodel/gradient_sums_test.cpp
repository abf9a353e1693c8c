#include "costmodel/gradient_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "costmodel/index.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using ::testing::ElementsAre;
using testing::flat_topology;
using ::testing::IsEmpty;

TEST(GradientSums, AreOverReplicasThenOverTheHoldersOfEachSharedParameter) {
  Graph graph = chain_graph({1, 1, 1, 1}, {1, 1, 1, 1}, 0_B, 100_B);
  graph.layers[0].tied = {{"embedding", 32_B}};
  graph.layers[3].tied = {{"embedding", 32_B}, {"output", 5_B}};
  graph.layers[1].tied = graph.layers[2].tied = {{"inner", 7_B}};  // both in stage 1
  const BoundPlan bound(make_plan(graph, flat_topology(4), {{0, 1, 1, 2}, {2, 1, 1}}, {}));
  const auto sums = gradient_sums(graph, bound);
  ASSERT_EQ(sums.size(), 3u);
  ASSERT_EQ(sums[0].size(), 2u);
  EXPECT_THAT(sums[0][0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(sums[0][0].bytes, 68_B);
  EXPECT_EQ(sums[0][0].tied, std::nullopt);
  EXPECT_THAT(sums[0][1].ranks, ElementsAre(0, 1, 3));
  EXPECT_EQ(sums[0][1].bytes, 32_B);
  EXPECT_EQ(sums[0][1].tied, 0);
  EXPECT_THAT(sums[1], IsEmpty()) << "one rank holds all of it";
  ASSERT_EQ(sums[2].size(), 1u);
  EXPECT_EQ(sums[2][0].ranks, sums[0][1].ranks);
  EXPECT_EQ(sums[2][0].bytes, 32_B);
  EXPECT_EQ(sums[2][0].tied, 0);
}

TEST(GradientSums, HoldAParameterOfOneReplicatedStageOnce) {
  Graph graph = chain_graph({1, 1}, {1, 1}, 0_B, 100_B);
  graph.layers[0].tied = graph.layers[1].tied = {{"embedding", 32_B}};
  const BoundPlan bound(make_plan(graph, flat_topology(2), {{0, 0}, {2}}, {}));
  const auto sums = gradient_sums(graph, bound);
  ASSERT_EQ(sums[0].size(), 2u);
  EXPECT_EQ(sums[0][0].bytes, 136_B) << "200 less 32 that is counted twice and 32 that has a sum of its own";
  EXPECT_EQ(sums[0][1].bytes, 32_B);
}

/// A chain of four layers, of which the first and the last share "wte"; the parameters of each are named.
Graph named_graph() {
  Graph graph = chain_graph({1, 1, 1, 1}, {1, 1, 1, 1}, 0_B, 0_B);
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const std::string name = "h" + std::to_string(i);
    graph.layers[i].parameter_tensors = {{name + ".weight", {2, 3}, "float32"}, {name + ".bias", {2}, "float32"}};
    graph.layers[i].parameter_bytes = 32_B;
  }
  for (const std::size_t i : {0U, 3U}) {
    graph.layers[i].parameter_tensors.push_back({"wte", {5}, "float32"});
    graph.layers[i].parameter_bytes += 20_B;
    graph.layers[i].tied = {{"wte", 20_B}};
  }
  validate(graph);
  return graph;
}

TEST(GradientSums, AreTheSameFromTheGraphAndFromThePlanThatListsItsParameters) {
  const Graph graph = named_graph();
  Plan plan = make_plan(graph, flat_topology(4), {{0, 1, 1, 2}, {2, 1, 1}}, {});
  EXPECT_EQ(held_parameters(plan), std::nullopt);
  list_parameters(graph, plan);
  const BoundPlan bound(plan);
  validate(bound, graph, flat_topology(4));
  const HeldParameters held = held_parameters(graph, bound.plan());
  EXPECT_EQ(held_parameters(bound.plan()), held);
  EXPECT_THAT(held[1], ElementsAre(HeldParameter{"h1.weight", 0, 24_B}, HeldParameter{"h1.bias", 0, 8_B},
                                   HeldParameter{"h2.weight", 1, 24_B}, HeldParameter{"h2.bias", 1, 8_B}));
  const GradientSums sums = gradient_sums(graph, bound);
  const auto homes = parameter_homes(bound, held, sums);
  EXPECT_THAT(homes.at("wte").holders, ElementsAre(0, 1, 3));
  EXPECT_EQ(homes.at("wte").stage, 0);
  EXPECT_THAT(homes.at("h2.bias").holders, ElementsAre(2));
  EXPECT_EQ(homes.at("h2.bias").stage, 1);
  EXPECT_EQ(homes.at("h2.bias").owner, 2);
  EXPECT_THAT(homes.at("wte").parts, IsEmpty());
  EXPECT_THAT(sums[0], ElementsAre(GradientSum{{0, 1}, 32_B, {}, {0, 1}, 0}, GradientSum{{0, 1, 3}, 20_B, 0, {2}, 0}));
  EXPECT_THAT(sums[1], IsEmpty());
  EXPECT_THAT(sums[2], ElementsAre(GradientSum{{0, 1, 3}, 20_B, 0, {2}, 0}));
  EXPECT_EQ(wrong_sum(bound, held, sums, bound.action_lists()), std::nullopt);
}

TEST(GradientSums, FillBucketsWithParametersFromTheLast) {
  const Graph graph = named_graph();
  const PlanSettings settings{.gradient_bucket_bytes = 30_B};
  const BoundPlan bound(make_plan(graph, flat_topology(2), {{0, 0, 0, 0}, {2}}, settings));
  // Without "wte": 24, 8 | 24, 8 | 24, 8 | 24, 8 bytes from the first layer to the last; from the last, 8 + 24 fill
  // one.
  const GradientSums sums = gradient_sums(graph, bound);
  ASSERT_EQ(sums[0].size(), 5u);
  for (int bucket = 0; bucket < 4; ++bucket) {
    EXPECT_EQ(sums[0][to_index(bucket)].bytes, 32_B);
    EXPECT_EQ(sums[0][to_index(bucket)].layer, to_index(3 - bucket));
  }
  EXPECT_THAT(sums[0][0].parameters, ElementsAre(7, 8)) << "2 is the first \"wte\", 9 the last";
  EXPECT_EQ(sums[0][4], (GradientSum{{0, 1}, 20_B, 0, {2}, 0}));
}

TEST(OwnedValues, AreCutBetweenTensorsOrAtBlocksOfOne) {
  // By hand. 1500 and 3000 values, cut ideally at 2250: 1500 + 1024 is nearer than 1500.
  EXPECT_THAT(owned_values(std::vector<std::int64_t>{1500, 3000}, 2), ElementsAre(2524, 1976));
  // Ideally at 1500 and 3000: 1500 itself, then 1500 + 1024 (2524) against 1500 + 2048 (3548): the first.
  EXPECT_THAT(owned_values(std::vector<std::int64_t>{1500, 3000}, 3), ElementsAre(1500, 1024, 1976));
  // Fewer values than a block: whole tensors.
  EXPECT_THAT(owned_values(std::vector<std::int64_t>{7, 3, 10}, 2), ElementsAre(10, 10));
  EXPECT_THAT(owned_values(std::vector<std::int64_t>{9}, 2), ElementsAre(0, 9));
  EXPECT_THAT(owned_values(std::vector<std::int64_t>{}, 2), ElementsAre(0, 0));
  EXPECT_THAT(owned_ranges(std::vector<std::int64_t>{1500, 3000}, std::vector<std::int64_t>{2524, 1976}, 0),
              ElementsAre(ValueRange{0, 1500}, ValueRange{0, 1024}));
  EXPECT_THAT(owned_ranges(std::vector<std::int64_t>{1500, 3000}, std::vector<std::int64_t>{2524, 1976}, 1),
              ElementsAre(ValueRange{1500, 0}, ValueRange{1024, 1976}));
}

TEST(GradientSums, NameWhatEachHolderUpdatesWhereTheOptimizersStateIsDivided) {
  Graph graph = named_graph();
  Plan plan = make_plan(graph, flat_topology(4), {{0, 1, 1, 2}, {2, 1, 1}}, {.sharding = StateSharding::Optimizer});
  const BoundPlan bound(plan);
  const HeldParameters held = held_parameters(graph, bound.plan());
  const GradientSums sums = gradient_sums(graph, bound);
  // "h0.weight" (24 bytes) and "h0.bias" (8) over ranks 0 and 1; "wte" (20) over ranks 0, 1 and 3 is less than a block.
  EXPECT_THAT(sums[0][0].parts, ElementsAre(24_B, 8_B));
  EXPECT_THAT(sums[0][1].parts, ElementsAre(0_B, 20_B, 0_B));
  EXPECT_EQ(sums[2][0].parts, sums[0][1].parts);
  EXPECT_EQ(wrong_sum(bound, held, sums, bound.action_lists()), std::nullopt);
  const auto homes = parameter_homes(bound, held, sums);
  EXPECT_THAT(homes.at("h0.bias").parts, ElementsAre(OwnedRange{1, {0, 2}}));
  EXPECT_THAT(homes.at("wte").parts, ElementsAre(OwnedRange{1, {0, 5}}));
  EXPECT_THAT(homes.at("h2.bias").parts, IsEmpty()) << "its stage has one rank";
  EXPECT_EQ(updated_bytes(sums[0], 0, 52_B), 24_B);
  EXPECT_EQ(updated_bytes(sums[0], 1, 52_B), 28_B);
  EXPECT_EQ(updated_bytes(sums[1], 2, 64_B), 64_B);
  GradientSums wrong = sums;
  wrong[0][0].parts = {24_B, 4_B};
  EXPECT_THAT(wrong_sum(bound, held, wrong, bound.action_lists()).value_or(""),
              ::testing::HasSubstr("in a sum whose parts do not cover it"));
}

TEST(GradientSums, CountTheBytesOfGradientsAndGatherThoseOfParameters) {
  // 2 bytes a value of a parameter and 4 of its gradient: of "h0.weight" (6 values), "h0.bias" (2) and "wte" (5).
  Graph graph = named_graph();
  graph.dtype = "bfloat16";
  graph.types.parameters = StateType::Bfloat16;
  for (Layer& layer : graph.layers) {
    layer.parameter_bytes = Bytes(layer.parameter_bytes.value / 2);
    for (StateTensor& tensor : layer.parameter_tensors) tensor.dtype = "bfloat16";
    for (TiedParameter& tied : layer.tied) tied.bytes = 10_B;
  }
  validate(graph);
  const BoundPlan bound(
      make_plan(graph, flat_topology(4), {{0, 1, 1, 2}, {2, 1, 1}}, {.sharding = StateSharding::Optimizer}));
  const HeldParameters held = held_parameters(graph, bound.plan());
  const GradientSums sums = gradient_sums(graph, bound);
  EXPECT_EQ(sums[0][0].bytes, 32_B);
  EXPECT_EQ(gradient_values(sums[0][0]), 8);
  EXPECT_EQ(gathered_bytes(sums[0][0]), 16_B);
  EXPECT_THAT(sums[0][0].parts, ElementsAre(24_B, 8_B));
  EXPECT_THAT(part_values(sums[0][0]), ElementsAre(6, 2));
  EXPECT_THAT(parameter_values(sums[0][0], held[0]), ElementsAre(6, 2));
  EXPECT_THAT(sums[0][1].parts, ElementsAre(0_B, 20_B, 0_B));
  EXPECT_EQ(updated_bytes(sums[0], 0, 26_B), 12_B) << "of 6, 2 and 5 values, the first 6";
  EXPECT_EQ(updated_bytes(sums[0], 1, 26_B), 14_B);
  EXPECT_EQ(wrong_sum(bound, held, sums, bound.action_lists()), std::nullopt);
}

TEST(WrongSum, NamesTheParameterThatIsNotSummedOverItsHoldersOnce) {
  const Graph graph = named_graph();
  const BoundPlan bound(make_plan(graph, flat_topology(4), {{0, 1, 1, 2}, {2, 1, 1}}, {}));
  const HeldParameters held = held_parameters(graph, bound.plan());
  const auto lists = bound.action_lists();
  const auto wrong = [&](const std::function<void(GradientSums&)>& change) {
    GradientSums sums = gradient_sums(graph, bound);
    change(sums);
    return wrong_sum(bound, held, sums, lists).value_or("");
  };
  EXPECT_EQ(wrong([](GradientSums& sums) { sums[0][0].ranks = {0, 3}; }),
            "stage 0: the gradient of parameter \"h0.weight\" is summed over ranks 0 and 3, but ranks 0 and 1 hold it");
  EXPECT_EQ(wrong([](GradientSums& sums) { sums[0][0].parameters = {0}; }),
            "stage 0: the gradient of parameter \"h0.bias\" is not summed, but ranks 0 and 1 hold it");
  EXPECT_EQ(
      wrong([](GradientSums& sums) { sums[0][1].parameters = {1, 2}; }),
      "stage 0: the gradient of parameter \"h0.bias\" is summed over ranks 0, 1 and 3, but ranks 0 and 1 hold it");
  EXPECT_EQ(wrong([](GradientSums& sums) { sums[0].push_back(sums[0][0]); }),
            "stage 0: the gradient of parameter \"h0.weight\" is summed twice");
  EXPECT_EQ(wrong([](GradientSums& sums) { sums[2].clear(); }),
            "stage 2: the gradient of parameter \"wte\" is not summed, but ranks 0, 1 and 3 hold it");
  EXPECT_EQ(wrong([](GradientSums& sums) { sums[1].push_back({{2}, 32_B, {}, {0}, 0}); }), "")
      << "a sum over the only holder changes nothing";
}

TEST(WrongSum, NamesRanksThatSumInDifferentOrders) {
  const Graph graph = named_graph();
  const BoundPlan bound(make_plan(graph, flat_topology(2), {{0, 0, 0, 0}, {2}}, {.gradient_bucket_bytes = 30_B}));
  const HeldParameters held = held_parameters(graph, bound.plan());
  const GradientSums sums = gradient_sums(graph, bound);
  auto lists = bound.action_lists();
  EXPECT_EQ(wrong_sum(bound, held, sums, lists), std::nullopt);
  std::erase_if(lists[1], [](const Action& action) { return action.kind == ActionKind::Reduce; });
  EXPECT_EQ(wrong_sum(bound, held, sums, lists),
            "ranks 0 and 1 do not sum gradients in one order: rank 0 begins its sum 1 over them while others begin "
            "another");
}

TEST(FillBuckets, TakesLayersFromTheLastUntilTheBucketIsFull) {
  const auto fill = [](const std::vector<Bytes>& layers) {
    std::vector<std::pair<Bytes, std::size_t>> out;
    for (const FilledBucket& bucket : fill_buckets(layers, 30_B)) out.emplace_back(bucket.bytes, bucket.first);
    return out;
  };
  EXPECT_THAT(fill({10_B, 0_B, 30_B, 5_B}), ElementsAre(std::pair(35_B, 2u), std::pair(10_B, 0u)));
  EXPECT_THAT(fill({0_B, 40_B}), ElementsAre(std::pair(40_B, 1u))) << "a layer without parameters completes nothing";
  EXPECT_THAT(fill({0_B, 0_B}), IsEmpty());
  EXPECT_THAT(fill({}), IsEmpty());
}

}  // namespace
}  // namespace stagecraft
