#include "partitioner/objective/dapple_solver.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <variant>

#include "costmodel/index.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"

namespace stagecraft::partitioner {
namespace {

DappleProblem list_problem(const std::vector<double>& times, double parameters, double crossing, int devices,
                           int microbatches) {
  DappleProblem out;
  for (int i = 0; i < to_int(times.size()); ++i)
    out.layers.push_back({i, Seconds(times[to_index(i)]), FractionalBytes(parameters), FractionalBytes(crossing),
                          FractionalBytes(crossing)});
  out.devices = devices;
  out.microbatches = microbatches;
  out.bandwidth = BytesPerSecond(1);
  return out;
}

DappleAnswer answer_of(const DappleProblem& problem, const SearchLimits& limits = {}) {
  return std::get<DappleAnswer>(solve({problem}, limits));
}

/// Two layers of 2 and 4 s, with 3 and 6 bytes of parameters, and 1 byte between them at 1 B/s. On three devices, one
/// and two: the block is max(2, 4 / 2, 2 * 1) = 2 s; the second stage sums 2 (1 / 2) 6 = 6 s, of which one block is
/// hidden: 6 + 3 * 2 + 1 + 4 = 17 s with 4 microbatches.
TEST(DappleStep, AddsUpByHand) {
  DappleProblem problem = list_problem({2, 4}, 0, 1, 3, 4);
  problem.layers[0].parameters = FractionalBytes(3);
  problem.layers[1].parameters = FractionalBytes(6);
  EXPECT_DOUBLE_EQ(dapple_step(problem, {1, 2}, {1, 2}).value, 17);
  // One stage of both: 6 / 3 s; 2 (2 / 3) 9 = 12 s of sums, none hidden.
  EXPECT_DOUBLE_EQ(dapple_step(problem, {2}, {3}).value, 6 + 3 * 2 + 12);
  // The first stage on two devices: block 4 s; its sum of 3 s is not hidden.
  EXPECT_DOUBLE_EQ(dapple_step(problem, {1, 2}, {2, 1}).value, 6 + 3 * 4 + 1 + 3);
}

/// Of these the first one is the shortest.
TEST(DappleSolver, FindsIt) {
  DappleProblem problem = list_problem({2, 4}, 0, 1, 3, 4);
  problem.layers[0].parameters = FractionalBytes(3);
  problem.layers[1].parameters = FractionalBytes(6);
  const DappleAnswer answer = answer_of(problem);
  EXPECT_DOUBLE_EQ(answer.value.value, 17);
  EXPECT_DOUBLE_EQ(answer.lower_bound.value, 17);
  ASSERT_EQ(answer.stages.size(), 2U);
  EXPECT_EQ(answer.stages[0].devices, 1);
  EXPECT_EQ(answer.stages[1].devices, 2);
  EXPECT_EQ(answer.stages[1].nodes, std::vector<int>{1});
  EXPECT_EQ(answer.stages[1].time, Seconds(2));
}

/// Every division of random lists, with and without a memory limit, is tried: none is shorter.
TEST(DappleSolver, IsTheShortestOfAllDivisions) {
  int feasible = 0;
  int stages = 0;
  for (unsigned seed = 1; seed <= 1500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto some = [&](int most) { return static_cast<double>(random() % static_cast<unsigned>(most)); };
    const int layers = 1 + static_cast<int>(random() % 6);
    DappleProblem problem = list_problem(std::vector<double>(to_index(layers), 0), 0, 0,
                                         1 + static_cast<int>(random() % 4), 1 + static_cast<int>(random() % 8));
    for (DappleProblem::ListLayer& layer : problem.layers)
      layer = {layer.node, Seconds(some(9)), FractionalBytes(some(8)), FractionalBytes(some(4)),
               FractionalBytes(some(4))};
    if (random() % 3 == 0) problem.memory_limit = FractionalBytes(2 + some(20));
    double shortest = 1e100;
    std::vector<int> ends;
    std::vector<int> devices;
    const std::function<void(int, int)> divide = [&](int from, int left) {
      if (from == layers) {
        shortest = std::min(shortest, dapple_step(problem, ends, devices).value);
        return;
      }
      if (to_int(ends.size()) == problem.microbatches) return;
      for (int end = from + 1; end <= layers; ++end) {
        for (int r = 1; r <= left; ++r) {
          FractionalBytes bytes;
          for (int i = from; i < end; ++i)
            bytes += problem.layers[to_index(i)].parameters + problem.layers[to_index(i)].outputs / r;
          if (problem.memory_limit && bytes > *problem.memory_limit) continue;
          ends.push_back(end);
          devices.push_back(r);
          divide(end, left - r);
          ends.pop_back();
          devices.pop_back();
        }
      }
    };
    divide(0, problem.devices);
    const auto result = solve({problem});
    if (shortest == 1e100) {
      EXPECT_TRUE(std::holds_alternative<Infeasible>(result));
      continue;
    }
    ++feasible;
    const auto& answer = std::get<DappleAnswer>(result);
    ASSERT_NEAR(answer.value.value, shortest, 1e-9);
    ASSERT_NEAR(answer.lower_bound.value, shortest, 1e-9);
    ASSERT_EQ(answer.effort.stopped, "");
    stages += to_int(answer.stages.size());
  }
  EXPECT_GT(feasible, 1200);
  EXPECT_GT(stages, 3 * feasible / 2);
}

/// Without time there is no plan; with a list that has too many divisions it says so.
TEST(DappleSolver, HasLimits) {
  const DappleProblem problem = list_problem(std::vector<double>(40, 1), 1, 1, 8, 16);
  SearchLimits limits;
  limits.time = Seconds(0);
  const auto none = solve({problem}, limits);
  EXPECT_NE(std::get<Infeasible>(none).reason.find("time limit"), std::string::npos);
  const auto large = solve({list_problem(std::vector<double>(4000, 1), 1, 1, 8, 16)});
  EXPECT_NE(std::get<Infeasible>(large).reason.find("4000 layers on 8 devices"), std::string::npos);
}

/// A layer's output crosses each border before its last reader, once; inputs of the graph are not layers.
TEST(DappleProblems, CountWhatCrosses) {
  Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2}, Bytes(10), Bytes(5));
  graph.edges.push_back({0, 2, 0});  // l0 is read by l1 and l2
  const auto lists = dapple_problems(graph, 2, BytesPerSecond(10), 4, Bytes(100));
  ASSERT_EQ(lists.size(), 2U);
  for (const DappleProblem& list : lists) {
    ASSERT_EQ(list.layers.size(), 4U);
    EXPECT_EQ(list.layers[0].crossing, FractionalBytes(10));
    EXPECT_EQ(list.layers[1].crossing, FractionalBytes(20));
    EXPECT_EQ(list.layers[2].crossing, FractionalBytes(10));
    EXPECT_EQ(list.layers[3].crossing, FractionalBytes(0));
    EXPECT_EQ(list.layers[0].time, Seconds(3));
    EXPECT_EQ(list.layers[0].parameters, FractionalBytes(5));
    EXPECT_EQ(list.memory_limit, FractionalBytes(100));
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
