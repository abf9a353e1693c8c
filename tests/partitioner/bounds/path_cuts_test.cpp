#include "partitioner/bounds/path_cuts.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "costmodel/index.h"
#include "tests/partitioner/bounds/bounds.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"

namespace stagecraft::partitioner {
namespace {

/// 100 layers of 3 s have 99 cuts between them, and one before and after all. The next coarser level joins what has no
/// more computation in between than 300 s / 16: 7 cuts each; the coarsest, what has no more than 300 s / 10: 11 cuts,
/// counted by where the first of them are.
TEST(PathCuts, JoinsNeighbours) {
  const Graph graph = testing::chain_graph(std::vector<double>(100, 1), std::vector<double>(100, 2));
  const PipelineCosts costs(graph, testing::flat_topology(2), settings_of("1f1b", 4));
  const PathCuts cuts(costs, 10);
  ASSERT_EQ(cuts.levels().size(), 3U);
  EXPECT_EQ(cuts.fine().size(), 101U);
  EXPECT_EQ(cuts.levels()[1].size(), 2 + 15U);
  EXPECT_EQ(cuts.levels()[1][1].first, 1);
  EXPECT_EQ(cuts.levels()[1][1].last, 7);
  EXPECT_EQ(cuts.coarse()[1].first, 1);
  EXPECT_EQ(cuts.coarse()[1].last, 14);
  EXPECT_LE(cuts.coarse().size(), 12U);
}

/// Each level's cuts are those of the next finer one, each once and in order; and of a stage, finer cuts know no less.
TEST(PathCuts, LevelsAreNested) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 3 + static_cast<int>(random() % 30));
    const PipelineCosts costs(graph, testing::flat_topology(2), settings_of("1f1b", 4));
    const PathCuts cuts(costs, 1 + static_cast<int>(random() % 4));
    for (std::size_t level = 1; level < cuts.levels().size(); ++level) {
      const std::vector<PathCut>& coarse = cuts.levels()[level - 1];
      const std::vector<PathCut>& fine = cuts.levels()[level];
      ASSERT_LT(coarse.size(), fine.size());
      std::size_t next = 0;
      for (const PathCut& cut : coarse) {
        ASSERT_EQ(cut.parts, next);
        ASSERT_GT(cut.parts_end, cut.parts);
        next = cut.parts_end;
        EXPECT_EQ(cut.first, fine[cut.parts].first);
        EXPECT_EQ(cut.last, fine[cut.parts_end - 1].last);
      }
      ASSERT_EQ(next, fine.size());
      for (std::size_t i = 0; i < coarse.size(); ++i) {
        for (std::size_t j = i + 1; j < coarse.size(); ++j) {
          const PathSums least = cuts.between(coarse[i], coarse[j]);
          const PathSums more = cuts.between(fine[coarse[i].parts_end - 1], fine[coarse[j].parts]);
          EXPECT_LE(least.least, more.least * (1 + 1e-12));
          EXPECT_LE(least.bytes.state, more.bytes.state);
        }
      }
    }
  }
}

/// Stages that begin at some cuts are a split: no layer is before one that it needs, and no stage has less than what
/// is known of it.
TEST(PathCuts, StagesBeginAtCuts) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 3 + static_cast<int>(random() % 20));
    const PipelineCosts costs(graph, testing::flat_topology(2), settings_of("1f1b", 4));
    const PathCuts cuts(costs, 1000);
    if (cuts.fine().size() < 4) continue;
    std::size_t a = 1 + random() % (cuts.fine().size() - 2);
    std::size_t b = 1 + random() % (cuts.fine().size() - 2);
    if (a > b) std::swap(a, b);
    const std::vector<int> stages = cuts.stage_of_node({a, b});
    ASSERT_EQ(stages.size(), to_index(costs.dag().nodes));
    for (const auto& [from, to] : costs.dag().edges) EXPECT_LE(stages[to_index(from)], stages[to_index(to)]);
    Seconds middle;
    Seconds all;
    for (std::size_t v = 0; v < stages.size(); ++v) {
      all += costs.node(to_int(v)).least;
      if (stages[v] == 1) middle += costs.node(to_int(v)).least;
    }
    // The difference of two sums from the first layer on has their rounding, even where it should be 0.
    const Seconds rounding = all * std::numeric_limits<double>::epsilon();
    EXPECT_GE(middle * (1 + 1e-12) + rounding, cuts.between(cuts.fine()[a], cuts.fine()[b]).least);
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
