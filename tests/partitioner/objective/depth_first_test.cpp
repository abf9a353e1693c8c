#include "partitioner/objective/depth_first.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "costmodel/index.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::ElementsAre;

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
