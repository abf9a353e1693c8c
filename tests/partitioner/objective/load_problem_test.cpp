#include "partitioner/objective/load_problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "costmodel/index.h"
#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::ElementsAre;

/// An input that feeds l0; l0 feeds l1 and l2, l1 feeds l2. Outputs of 1000 B, parameters of 4000 B.
Graph three_layers() {
  Graph graph = testing::chain_graph({1, 2, 3}, {2, 4, 6}, 1000_B, 4000_B);
  Layer input;
  input.id = input.name = "data";
  input.kind = kInputKind;
  input.outputs = {{500_B, {}, "", false}};
  graph.layers.push_back(input);
  graph.edges.push_back({3, 0, 0});
  graph.edges.push_back({0, 2, 0});
  validate(graph);
  return graph;
}

/// A layer takes its forward and backward: 3, 6 and 9 s, on an accelerator and on a CPU alike. Memory is parameters and
/// output, 5000 B each.
TEST(LoadProblem, CountsTheWorkAndMemoryOfLayers) {
  const LoadProblem problem = load_problem(three_layers(), 4, std::nullopt, 0, Bytes(8000));
  EXPECT_EQ(problem.accelerators, 4);
  EXPECT_EQ(problem.cpus, 0);
  EXPECT_EQ(problem.memory_limit, FractionalBytes(8000));
  ASSERT_EQ(problem.nodes.size(), 3U);  // the input is left out
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(problem.nodes[i].accelerator, Seconds(3.0 * static_cast<double>(i + 1)));
    EXPECT_EQ(problem.nodes[i].cpu, problem.nodes[i].accelerator);
    EXPECT_EQ(problem.nodes[i].bytes, FractionalBytes(5000));
    EXPECT_TRUE(problem.nodes[i].on_accelerator);
    EXPECT_THAT(problem.nodes[i].members, ElementsAre("l" + std::to_string(i)));
  }
  EXPECT_EQ(problem.order.nodes, 3);
  EXPECT_THAT(problem.order.edges, ::testing::UnorderedElementsAre(std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)));
  EXPECT_TRUE(problem.tensors.empty());  // without a bandwidth transfers are free
}

/// 1000 B at 500 B/s, twice: 4 s for each output that another layer reads, however many do. The last layer's is not
/// read, and the input's not counted.
TEST(LoadProblem, CountsAnOutputOnceForAllItsReaders) {
  const LoadProblem problem = load_problem(three_layers(), 2, BytesPerSecond(500), 2, std::nullopt);
  EXPECT_EQ(problem.memory_limit, FractionalBytes(std::numeric_limits<double>::infinity()));
  ASSERT_EQ(problem.tensors.size(), 2U);
  EXPECT_EQ(problem.tensors[0].producer, 0);
  EXPECT_THAT(problem.tensors[0].consumers, ElementsAre(1, 2));
  EXPECT_EQ(problem.tensors[0].cost, Seconds(4));
  EXPECT_EQ(problem.tensors[1].producer, 1);
  EXPECT_THAT(problem.tensors[1].consumers, ElementsAre(2));
  EXPECT_EQ(problem.tensors[1].cost, Seconds(4));
}

/// Of two outputs each has its own bytes and readers: 1000 B to l1, 250 B to l2; and one without bytes costs nothing.
TEST(LoadProblem, TellsOutputsApart) {
  Graph graph = three_layers();
  graph.layers[0].outputs.push_back({250_B, {}, "", true});
  graph.edges.back().output = 1;
  LoadProblem problem = load_problem(graph, 2, BytesPerSecond(500), 1, std::nullopt);
  ASSERT_EQ(problem.tensors.size(), 3U);
  EXPECT_THAT(problem.tensors[0].consumers, ElementsAre(1));
  EXPECT_EQ(problem.tensors[0].cost, Seconds(2));
  EXPECT_THAT(problem.tensors[1].consumers, ElementsAre(2));
  EXPECT_EQ(problem.tensors[1].cost, Seconds(0.5));
  EXPECT_EQ(problem.nodes[0].bytes, FractionalBytes(4000 + 1250));

  graph.layers[0].outputs[1].bytes = 0_B;
  problem = load_problem(graph, 2, BytesPerSecond(500), 1, std::nullopt);
  EXPECT_EQ(problem.tensors.size(), 2U);
}

/// 0 -> {1, 2} -> 3. What becomes ready last comes next: 2 before 1. From the end, 3, 2, 1, 0, turned round.
TEST(DepthFirst, OrdersADiamond) {
  const Dag diamond{4, {{0, 1}, {0, 2}, {1, 3}, {2, 3}}};
  EXPECT_THAT(depth_first(diamond), ElementsAre(0, 2, 1, 3));
  EXPECT_EQ(depth_first_lists(diamond),
            (std::vector<Dag>{{4, {{0, 2}, {2, 1}, {1, 3}}}, {4, {{0, 1}, {1, 2}, {2, 3}}}}));
}

/// 0 -> 1 -> 2 and 0 -> 3 -> 4: one branch to its end, then the other.
TEST(DepthFirst, FollowsOneBranchAsFarAsItGoes) {
  EXPECT_THAT(depth_first({5, {{0, 1}, {1, 2}, {0, 3}, {3, 4}}}), ElementsAre(0, 3, 4, 1, 2));
}

TEST(DepthFirst, BeginsWithTheFirstOfSeveralSources) {
  EXPECT_THAT(depth_first({3, {}}), ElementsAre(0, 1, 2));
  EXPECT_THAT(depth_first({0, {}}), ElementsAre());
}

TEST(DepthFirst, ListsEachNodeBeforeTheNext) {
  EXPECT_EQ(list_of({2, 0, 1}), (Dag{3, {{2, 0}, {0, 1}}}));
  EXPECT_EQ(list_of({0}), (Dag{1, {}}));
}

/// The order of the nodes of a list.
std::vector<int> order_of(const Dag& list) {
  std::vector<int> out;
  for (const auto& [from, to] : list.edges) {
    if (out.empty()) out.push_back(from);
    out.push_back(to);
  }
  if (out.empty()) out.push_back(0);
  return out;
}

TEST(DepthFirst, OrdersAreTopological) {
  for (unsigned seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Dag dag{1 + static_cast<int>(random() % 12), {}};
    std::vector<int> number(to_index(dag.nodes));  // nodes are not in topological order themselves
    std::iota(number.begin(), number.end(), 0);
    std::ranges::shuffle(number, random);
    for (int a = 0; a < dag.nodes; ++a) {
      for (int b = a + 1; b < dag.nodes; ++b) {
        if (random() % 4 == 0) dag.edges.emplace_back(number[to_index(a)], number[to_index(b)]);
      }
    }
    std::vector<std::vector<int>> orders{depth_first(dag)};
    for (const Dag& list : depth_first_lists(dag)) orders.push_back(order_of(list));
    EXPECT_EQ(orders[1], orders[0]);
    for (const std::vector<int>& order : orders) {
      ASSERT_EQ(to_int(order.size()), dag.nodes);
      std::vector<int> place(order.size(), -1);
      for (std::size_t i = 0; i < order.size(); ++i) place[to_index(order[i])] = to_int(i);
      EXPECT_GE(std::ranges::min(place), 0);  // each node once
      for (const auto& [from, to] : dag.edges) EXPECT_LT(place[to_index(from)], place[to_index(to)]);
    }
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
