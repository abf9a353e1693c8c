#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/prediction/memory_replay.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/prediction/stage_costs.h"
#include "costmodel/prediction/verify.h"
#include "costmodel/simulation/simulate.h"
#include "tests/costmodel/interleavings.h"
#include "tests/support/chains.h"

// Gradients and parameters divided among replicas (StateSharding::Gradients and Parameters).

namespace stagecraft {
namespace {

using stagecraft::testing::chain_graph;
using stagecraft::testing::flat_topology;
using stagecraft::testing::row_plan;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Plan sharded(const std::string& schedule, int positions, int chunks, int microbatches,
             StateSharding sharding = StateSharding::Parameters) {
  Plan out =
      row_plan(schedule, std::vector<int>(static_cast<std::size_t>(positions * chunks), 2), microbatches, chunks);
  out.sharding = sharding;
  return out;
}

std::vector<std::string> texts(const std::vector<Action>& list) {
  std::vector<std::string> out;
  for (const Action& action : list) out.push_back(action_text(action));
  return out;
}

TEST(ShardedParameters, AreGatheredBeforeAStageAndFreedAfterIt) {
  const BoundPlan plan(sharded("looped-bfs", 1, 3, 2));
  EXPECT_THAT(texts(plan.action_lists()[1]),
              ElementsAre("0UNSHARD", "1UNSHARD", "0F1", "0RESHARD", "2UNSHARD", "1F1", "2F1", "2B1", "2REDUCE_GRAD",
                          "2RESHARD", "0UNSHARD", "1B1", "1REDUCE_GRAD", "1RESHARD", "0B1", "0REDUCE_GRAD", "0RESHARD",
                          "0UPDATE", "1UPDATE", "2UPDATE"));
  const BoundPlan gradients(sharded("looped-bfs", 1, 2, 2, StateSharding::Gradients));
  EXPECT_THAT(texts(gradients.action_lists()[0]),
              ElementsAre("0F0", "1F0", "1B0", "1REDUCE_GRAD", "0B0", "0REDUCE_GRAD", "0UPDATE", "1UPDATE"));
}

/// All-gathers of a rank and step with two stages whole at once: torch 2.11.0's pass that unshards and reshards stages,
/// replayed on its own lists of pipelines of single ranks.
TEST(ShardedParameters, AreGatheredAsOftenAsByTorch) {
  struct Row {
    const char* schedule;
    int chunks;
    int microbatches;  // of each replica
    int gathers;
  };
  for (const Row& row : {Row{"1f1b", 1, 8, 1}, Row{"interleaved-1f1b", 2, 8, 2}, Row{"interleaved-1f1b", 2, 32, 2},
                         Row{"interleaved-1f1b", 4, 8, 12}, Row{"interleaved-1f1b", 4, 32, 36},
                         Row{"interleaved-1f1b", 8, 8, 28}, Row{"interleaved-1f1b", 8, 32, 100},
                         Row{"looped-bfs", 4, 8, 6}, Row{"looped-bfs", 8, 32, 14}, Row{"zb-v", 2, 8, 2}}) {
    const BoundPlan plan(sharded(row.schedule, 4, row.chunks, 2 * row.microbatches));
    for (const std::vector<Action>& list : plan.action_lists()) {
      EXPECT_EQ(std::ranges::count(list, ActionKind::Gather, &Action::kind), row.gathers)
          << row.schedule << ", " << row.chunks << " chunks, " << row.microbatches << " microbatches";
    }
  }
}

/// Three stages of two replicas with one microbatch each: a forward takes 2 s, a backward 3, a sum and an update 1.
Timeline simulated(double gather) {
  const Graph graph = chain_graph({2, 2, 2}, {3, 3, 3});
  const BoundPlan plan(sharded("looped-bfs", 1, 3, 2));
  StageCost cost{Seconds(2), Seconds(3), Seconds(0), Seconds(1), Seconds(1)};
  cost.gather = Seconds(gather);
  const SimulationInput input{
      .plan = plan, .lists = plan.action_lists(), .stages = std::vector(3, cost), .mode = TransferMode::Latency};
  return std::get<Timeline>(simulate(input));
}

TEST(ShardedParameters, AreWaitedForByWhatNeedsThem) {
  // By hand. Stages 0 and 1 arrive at 1 and 2, so forwards begin at 1, 3 and 5, backwards at 7, 11 and 15, each
  // followed by its sum, and three updates at 19.
  const Timeline quick = simulated(1);
  EXPECT_DOUBLE_EQ(quick.steps[0].end.value, 22);
  // Stages 0 and 1 arrive at 4 and 8. Stage 2 is asked for at 6, after the first forward, and arrives at 12. Stage 0 is
  // asked for again at 18, before the backward of stage 1, and arrives at 22, when that and its sum end.
  const Timeline slow = simulated(4);
  EXPECT_DOUBLE_EQ(slow.steps[0].end.value, 29);
  std::vector<double> waits;
  for (const Span& span : slow.spans) {
    if (span.rank == 0 && span.action.kind == ActionKind::Gather) waits.push_back((span.end - span.start).value);
  }
  EXPECT_THAT(waits, ElementsAre(4, 2, 2));
}

TEST(ShardedParameters, AreGatheredInsteadOfAfterTheUpdate) {
  const Graph graph = chain_graph({1}, {1}, Bytes(0), Bytes(1 << 20));
  const Topology topology = flat_topology(2, 1e6);
  PlanSettings settings{.microbatches = 2, .sharding = StateSharding::Optimizer};
  const auto cost = [&] {
    return stage_costs(graph, topology, BoundPlan(make_plan(graph, topology, {{0}, {2}}, settings))).front();
  };
  const StageCost optimizer = cost();
  settings.sharding = StateSharding::Parameters;
  const StageCost parameters = cost();
  EXPECT_GT(optimizer.update, Seconds(0));
  EXPECT_EQ(optimizer.gather, Seconds(0));
  EXPECT_EQ(parameters.gather, optimizer.update);
  EXPECT_EQ(parameters.update, Seconds(0));
  EXPECT_EQ(parameters.reduce, optimizer.reduce);
}

TEST(ShardedParameters, TakeTheMemoryOfTwoStages) {
  // By hand: of each stage's 2048 values, a rank owns 1024, and as many of their gradients. The most is held in the
  // backward of stage 1: it is whole with its gradients, and stage 0 has memory both for its parameters and for what
  // arrives of them.
  const Graph graph = chain_graph({1, 1, 1}, {1, 1, 1}, Bytes(0), Bytes(8192));
  const BoundPlan plan(sharded("looped-bfs", 1, 3, 2));
  for (const MemoryReplay& replay : replay_memory(graph, plan, plan.action_lists())) {
    EXPECT_EQ(replay.peak.part(MemoryPart::Parameters), Bytes(3 * 4096 + 2 * 8192));
    EXPECT_EQ(replay.peak.part(MemoryPart::Gradients), Bytes(3 * 4096 + 8192));
    EXPECT_EQ(replay.peak.part(MemoryPart::Communication), Bytes(8192));
  }
  const BoundPlan gradients(sharded("looped-bfs", 1, 3, 2, StateSharding::Gradients));
  for (const MemoryReplay& replay : replay_memory(graph, gradients, gradients.action_lists())) {
    EXPECT_EQ(replay.peak.part(MemoryPart::Parameters), Bytes(3 * 8192));
    EXPECT_EQ(replay.peak.part(MemoryPart::Gradients), Bytes(3 * 4096 + 8192));
  }
}

TEST(ShardedParameters, AreProvedWhole) {
  const BoundPlan plan(sharded("looped-bfs", 2, 2, 4));
  const auto lists = plan.action_lists();
  const auto refusal = [&](auto change) {
    auto changed = lists;
    change(changed[0]);
    const auto result = verify(plan, changed);
    const auto* infeasible = std::get_if<Infeasible>(&result);
    return infeasible ? infeasible->reason : "";
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  const auto is = [](ActionKind kind) { return [kind](const Action& action) { return action.kind == kind; }; };
  EXPECT_THAT(refusal([&](auto& list) { list.erase(std::ranges::find_if(list, is(ActionKind::Gather))); }),
              HasSubstr("comes before the parameters are gathered"));
  EXPECT_THAT(refusal([&](auto& list) { list.erase(std::ranges::find_if(list, is(ActionKind::Free))); }),
              HasSubstr("never frees the parameters of stage"));
  EXPECT_THAT(refusal([&](auto& list) { list.insert(list.begin(), list.front()); }),
              HasSubstr("the parameters are gathered already"));
  EXPECT_THAT(refusal([&](auto& list) {
                std::swap(*std::ranges::find_if(list, is(ActionKind::Gather)),
                          *(std::ranges::find_if(list, is(ActionKind::Gather)) + 1));
              }),
              HasSubstr(" there"))
      << "another order than on the other replica";
  Plan whole = plan.plan();
  whole.sharding = StateSharding::Optimizer;
  const auto result = verify(BoundPlan(whole), lists);
  EXPECT_THAT(std::get<Infeasible>(result).reason, HasSubstr("the stage keeps its parameters whole"));
}

TEST(ShardedParameters, CannotHangUnderAnySchedule) {
  int plans = 0;
  for (const ScheduleEntry& schedule : schedules()) {
    if (!schedule.trains || schedule.weights != Weights::Flushed || schedule.needs_lists) continue;
    for (const int positions : {1, 2, 4}) {
      for (const int chunks : {1, 2, 4}) {
        if (!runs_chunks(schedule, chunks)) continue;
        for (const StateSharding sharding : {StateSharding::Gradients, StateSharding::Parameters}) {
          const BoundPlan plan(sharded(schedule.name, positions, chunks, 16, sharding));
          const auto result = verify(plan, plan.action_lists());
          const auto* infeasible = std::get_if<Infeasible>(&result);
          EXPECT_EQ(infeasible, nullptr) << schedule.name << ": " << (infeasible ? infeasible->reason : "");
          ++plans;
        }
        // Replicas with unequal shares.
        for (const int microbatches : {3, 5, 12, 13}) {
          Plan unequal = sharded(schedule.name, positions, chunks, microbatches, StateSharding::Gradients);
          try {
            validate(unequal);
          } catch (const std::invalid_argument&) { continue; }
          const BoundPlan plan(unequal);
          const auto result = verify(plan, plan.action_lists());
          const auto* infeasible = std::get_if<Infeasible>(&result);
          EXPECT_EQ(infeasible, nullptr) << schedule.name << ": " << (infeasible ? infeasible->reason : "");
          ++plans;
        }
      }
    }
  }
  EXPECT_GT(plans, 50);
}

TEST(ShardedParameters, NeedEquallyManyMicrobatchesOnAllReplicas) {
  EXPECT_THAT([] { validate(sharded("1f1b", 1, 1, 3)); },
              ::testing::ThrowsMessage<std::invalid_argument>(
                  HasSubstr("stage 0 has 2 replicas for 3 microbatches; replicas that share their parameters need "
                            "equally many microbatches: take a multiple of 2")));
  EXPECT_NO_THROW(validate(sharded("1f1b", 1, 1, 3, StateSharding::Gradients)));
}

}  // namespace
}  // namespace stagecraft
