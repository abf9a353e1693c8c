#include "partitioner/choices/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "partitioner/strategies/optimal.h"
#include "tests/support/chains.h"
#include "tests/support/places.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Two layers of 1 + 1 s that save 100 B of each of 4 microbatches of 2 samples.
Graph chain() {
  Graph graph = testing::chain_graph({1, 1}, {1, 1});
  graph.microbatch_samples = 2;
  for (Layer& layer : graph.layers) {
    layer.saved_bytes = 100_B;
    layer.workspace_bytes = 0_B;
  }
  return graph;
}

/// Under gpipe a device of two layers holds 800 B; recomputed layer by layer, the output of one layer, 0 B, and what
/// one layer saves. Half of the samples halve that. With replicas, a device of four microbatches' half holds 400 B.
Constraints of_one_device(Bytes limit) {
  Constraints out;
  out.memory_limit = limit;
  out.plan.schedule = "gpipe";
  out.plan.microbatches = 4;
  return out;
}

const Alternative* named(const std::vector<Alternative>& all, const std::string& change) {
  const auto found = std::ranges::find(all, change, &Alternative::change);
  return found == all.end() ? nullptr : &*found;
}

/// All on one device takes 4 * 4 s, and with recomputation 4 * 6 s; under 1f1b it needs 204 B only.
TEST(Alternatives, PredictOtherSettings) {
  const std::vector<Alternative> all = alternatives(chain(), testing::flat_topology(1), simulated_costs(),
                                                    of_one_device(300_B), {Seconds(100), false, Seconds(60)});
  const Alternative* const other = named(all, "--schedule 1f1b");
  ASSERT_NE(other, nullptr);
  EXPECT_NEAR(other->plan.prediction.iteration.value, 16, 1e-6);
  const Alternative* const again = named(all, "--recompute");
  ASSERT_NE(again, nullptr);
  EXPECT_NEAR(again->plan.prediction.iteration.value, 24, 1e-6);
  EXPECT_EQ(all.front().change, "--schedule 1f1b") << "the shortest step first";
  EXPECT_EQ(named(all, "--schedule gpipe"), nullptr) << "it is the request's";
}

TEST(Alternatives, AreShorterThanAsked) {
  const auto change_of = [](const Alternative& one) { return one.change; };
  for (const Alternative& one : alternatives(chain(), testing::flat_topology(1), simulated_costs(),
                                             of_one_device(300_B), {Seconds(20), false, Seconds(60)}))
    EXPECT_LT(one.plan.prediction.iteration, Seconds(20)) << change_of(one);
}

/// Twice the microbatches on two devices, as replicas: 4 for each take 16 s, for 8 instead of 4.
TEST(Alternatives, TryMoreMicrobatchesIfAsked) {
  Constraints constraints = of_one_device(10'000_B);
  constraints.plan.microbatches = 1;
  const Topology two = testing::flat_topology(2, 1e12);
  const std::vector<Alternative> all =
      alternatives(chain(), two, simulated_costs(), constraints, {Seconds(4), true, Seconds(60)});
  const Alternative* const more = named(all, "--microbatches 4");
  ASSERT_NE(more, nullptr);
  EXPECT_EQ(more->plan.plan.microbatches, 4);
  EXPECT_EQ(more->plan.prediction.unused_devices.size(), 0U);
  EXPECT_NEAR(more->plan.prediction.iteration.value, 8, 0.1);
  EXPECT_EQ(named(alternatives(chain(), two, simulated_costs(), constraints, {Seconds(4), false, Seconds(60)}),
                  "--microbatches 4"),
            nullptr);
}

std::vector<std::string> advice_of(const Constraints& constraints, const Topology& topology) {
  const CostModel costs = simulated_costs();
  const auto result = optimal_strategy().plan(chain(), topology, costs, constraints);
  return advice(chain(), topology, costs, constraints, std::get<Ranking>(result), Seconds(60), "");
}

/// gpipe on one of four devices has one microbatch, which takes 4 s: its step is as short on one as on two stages.
TEST(Advice, SaysWhatWouldUseIdleDevices) {
  Constraints constraints = of_one_device(10'000_B);
  constraints.plan.microbatches = 1;
  const std::vector<std::string> lines = advice_of(constraints, testing::flat_topology(4, 1e12));
  EXPECT_THAT(lines, Contains(AllOf(HasSubstr("plans that use them: "), HasSubstr("--microbatches 4: 4.00 s for 8 "
                                                                                  "samples, 2.0 samples per second"))));
}

TEST(Advice, NamesFasterSettings) {
  Constraints constraints = of_one_device(300_B);
  constraints.plan.recompute = true;
  const std::vector<std::string> lines = advice_of(constraints, testing::flat_topology(1));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("--recompute"))));
  EXPECT_THAT(advice_of(of_one_device(10'000_B), testing::flat_topology(1)), IsEmpty());
}

}  // namespace
}  // namespace stagecraft::partitioner
