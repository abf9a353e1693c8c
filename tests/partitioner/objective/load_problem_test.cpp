#include "partitioner/objective/load_problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

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

}  // namespace
}  // namespace stagecraft::partitioner
