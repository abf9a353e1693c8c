#include "partitioner/choices/stage_constraints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include "partitioner/candidate.h"
#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;

Graph chain(int layers) {
  const std::vector<double> times(static_cast<std::size_t>(layers), 1);
  return testing::chain_graph(times, times);
}

TEST(StageConstraints, ReadsPinsAndRangesOfLayersAndModules) {
  Graph graph = chain(5);
  graph.layers[1].id = "h.0.attn";
  graph.layers[2].id = "h.0.mlp";
  graph.layers[3].id = "h.01";
  const StageConstraints hand = stage_constraints(graph, {"h.0=1", "l4=2"}, {"l0..h.0"});
  EXPECT_THAT(hand.pins, ElementsAre(Pair(1, 1), Pair(2, 1), Pair(4, 2)));
  EXPECT_THAT(hand.together, ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_FALSE(hand.is_empty());
  EXPECT_TRUE(stage_constraints(graph, {}, {}).is_empty());
}

// l0 feeds l1 and l2, both feed l3: between l0 and l3 are both.
TEST(StageConstraints, RangesHoldEveryLayerOnPathsBetween) {
  Graph graph = chain(4);
  graph.edges = {{0, 1, 0}, {0, 2, 0}, {1, 3, 0}, {2, 3, 0}};
  EXPECT_THAT(stage_constraints(graph, {}, {"l0..l3"}).together, ElementsAre(ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(stage_constraints(graph, {}, {"l1..l1"}).together, ElementsAre(ElementsAre(1)));
}

TEST(StageConstraints, NamesTheOptionAndWhatIsWrong) {
  const Graph graph = chain(4);
  const auto refuses = [&](const std::vector<std::string>& pins, const std::vector<std::string>& ranges,
                           const std::string& message) {
    EXPECT_THAT([&] { (void)stage_constraints(graph, pins, ranges); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(message)));
  };
  for (const char* pin : {"l1", "l1=", "=1", "l1=x", "l1=-1", "l1=1.5", "l1=99999999999"})
    refuses({pin}, {}, "--pin: found \"" + std::string(pin) + "\", expected LAYER=STAGE with stages from 0");
  refuses({"l9=0"}, {}, "--pin: unknown layer \"l9\", known are l0, l1, l2, l3");
  refuses({}, {"l1"}, "--no-cut-in: found \"l1\", expected FIRST..LAST");
  refuses({}, {"..l1"}, "expected FIRST..LAST");
  refuses({}, {"l1.."}, "expected FIRST..LAST");
  refuses({}, {"l1..l9"}, "--no-cut-in: unknown layer \"l9\"");
  refuses({}, {"l2..l1"}, "--no-cut-in: in \"l2..l1\" the first layer comes after the last one");
  refuses({"l1=2", "l3=1"}, {}, "--pin: l1=2 and l3=1 contradict each other: the second layer uses the first one's");
  refuses({"l1=0", "l2=1"}, {"l1..l2"}, "--pin: l1=0 and l2=1 contradict --no-cut-in");
}

TEST(WithStageConstraints, MovesWhatHasToMove) {
  const Graph graph = chain(6);
  const Partition halves{{0, 0, 0, 1, 1, 1}, {1, 1}};
  // l4 in stage 0 takes l3 with it.
  EXPECT_THAT(with_stage_constraints(graph, halves, stage_constraints(graph, {"l4=0"}, {}))->stage_of_layer,
              ElementsAre(0, 0, 0, 0, 0, 1));
  // Two of l1..l3 are in stage 0.
  EXPECT_THAT(with_stage_constraints(graph, halves, stage_constraints(graph, {}, {"l1..l3"}))->stage_of_layer,
              ElementsAre(0, 0, 0, 0, 1, 1));
  EXPECT_THAT(with_stage_constraints(graph, halves, stage_constraints(graph, {"l1=1"}, {"l1..l2"}))->stage_of_layer,
              ElementsAre(0, 1, 1, 1, 1, 1));
  EXPECT_EQ(with_stage_constraints(graph, halves, stage_constraints(graph, {"l4=2"}, {})), std::nullopt);
  EXPECT_EQ(with_stage_constraints(graph, halves, stage_constraints(graph, {"l5=0"}, {})),
            std::nullopt);  // stage 1 is empty
}

// On random graphs: what comes out has the layers where they must be, no empty stage and no edge backwards.
TEST(WithStageConstraints, GivesValidStages) {
  int found = 0;
  for (unsigned seed = 1; seed <= 500; ++seed) {
    std::mt19937 random(seed);
    const int layers = 4 + static_cast<int>(random() % 5);
    Graph graph = chain(layers);
    graph.edges.clear();
    for (int to = 1; to < layers; ++to) {
      for (int from = 0; from < to; ++from) {
        if (random() % 3 == 0) graph.edges.push_back({from, to, 0});
      }
    }
    const int stages = 2 + static_cast<int>(random() % 2);
    Partition partition;
    partition.replicas.assign(static_cast<std::size_t>(stages), 1);
    for (int i = 0; i < layers; ++i) partition.stage_of_layer.push_back(i * stages / layers);
    StageConstraints hand;
    try {
      hand = stage_constraints(graph,
                               {"l" + std::to_string(random() % static_cast<unsigned>(layers)) + "=" +
                                std::to_string(random() % static_cast<unsigned>(stages))},
                               {"l1..l2"});
    } catch (const std::invalid_argument&) { continue; }
    const auto out = with_stage_constraints(graph, partition, hand);
    if (!out) continue;
    ++found;
    EXPECT_TRUE(honours(*out, hand)) << "seed " << seed;
    for (int s = 0; s < stages; ++s) EXPECT_GT(std::ranges::count(out->stage_of_layer, s), 0) << "seed " << seed;
    for (const Edge& edge : graph.edges) {
      EXPECT_LE(out->stage_of_layer[static_cast<std::size_t>(edge.source)],
                out->stage_of_layer[static_cast<std::size_t>(edge.destination)])
          << "seed " << seed;
    }
  }
  EXPECT_GT(found, 100);
}

TEST(PartitionOf, IsThePlansOwn) {
  Graph graph = chain(3);
  graph.layers[0].kind = "Input";
  const Partition partition{{-1, 0, 1}, {2, 1}};
  const Plan plan = make_plan(graph, testing::flat_topology(3), partition, {});
  EXPECT_EQ(partition_of(graph, plan), partition);
}

}  // namespace
}  // namespace stagecraft::partitioner
