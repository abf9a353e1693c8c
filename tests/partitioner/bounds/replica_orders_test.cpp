#include "partitioner/bounds/replica_orders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>

#include "tests/partitioner/bounds/bounds.h"
#include "tests/partitioner/bounds/shortest.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"

namespace stagecraft::partitioner {
namespace {

constexpr int kDevices = 4;

/// The sequences of replicas of a graph's stages on four devices.
class Orders {
 public:
  Orders(const Graph& graph, const Topology& topology, const PlanSettings& settings, int most_cuts)
      : costs_(graph, topology, settings),
        cuts_(costs_, most_cuts),
        stages_(costs_, cuts_, {}),
        orders_(costs_, cuts_, stages_) {
    // What may come after any cut: no time, with as many microbatches in flight as the devices can have.
    anything_.flight = 2 * std::int64_t{kDevices};
  }

  [[nodiscard]] std::optional<bool> refutes(Seconds time) {
    stages_.ask(time, kDevices);
    const ReplicaOrders::After after = [this](std::size_t, int) { return &anything_; };
    return orders_.refutes(after, kNoStop);
  }
  [[nodiscard]] std::vector<Split> splits() const { return orders_.splits(9); }

 private:
  PipelineCosts costs_;
  PathCuts cuts_;
  PathStages stages_;
  ReplicaOrders orders_;
  ReplicaOrders::Suffix anything_;
};

/// Four layers of 1 + 2 s with 1e9 bytes of parameters at 1e9 bytes per second, eight microbatches. Four replicas of
/// one stage compute for 24 s and sum 4e9 bytes in 6 s. Four stages take (8 + 4 - 1) 3 = 33 s, two of two replicas 32
/// s.
TEST(ReplicaOrders, RefuteWhatNoSequenceReaches) {
  const Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2}, Bytes(0), Bytes(1'000'000'000));
  Orders orders(graph, testing::flat_topology(kDevices), settings_of("1f1b", 8), 1000);
  EXPECT_NEAR(largest_refuted(1e-6, [&](Seconds time) { return orders.refutes(time); }), 30, 1e-2);
  const std::vector<Split> splits = orders.splits();
  EXPECT_TRUE(std::ranges::any_of(splits, [](const Split& split) { return split.replicas == std::vector<int>{4}; }));
}

/// No split has a predicted step that is refuted, with cuts that are joined and without.
TEST(ReplicaOrders, NeverExceedTheBestPlan) {
  int compared = 0;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 3 + static_cast<int>(random() % 3));
    const Topology topology = testing::flat_topology(kDevices, 1e5 * (1 + static_cast<double>(random() % 100)));
    const char* const schedules[] = {"1f1b", "gpipe", "forward"};
    Constraints constraints;
    constraints.plan = settings_of(schedules[random() % std::size(schedules)], 2 + static_cast<int>(random() % 8));
    std::optional<Seconds> shortest;
    const auto all = [] { return true; };
    each_predicted(graph, topology, constraints, kDevices, all, [&](const Partition&, const RankedPlan& ranked) {
      shortest = std::min(shortest.value_or(ranked.prediction.iteration), ranked.prediction.iteration);
    });
    if (!shortest || *shortest <= Seconds(0)) continue;
    ++compared;
    for (const int cuts : {1, 1000}) {
      Orders orders(graph, topology, constraints.plan, cuts);
      EXPECT_EQ(orders.refutes(*shortest * (1 + 1e-9)), false) << shortest->value;
    }
  }
  EXPECT_GT(compared, 50);
}

}  // namespace
}  // namespace stagecraft::partitioner
