#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "costmodel/format/plan_json.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/index.h"
#include "costmodel/prediction/verify.h"
#include "partitioner/strategies/strategies.h"
#include "tests/support/chains.h"
#include "tests/support/table_names.h"

// What holds for every entry of the table of schedules: it can be planned, its plans are proved, and they can be
// predicted. A new schedule needs no new code here.

namespace stagecraft::partitioner {
namespace {

constexpr int kDevices = 4;
constexpr int kMicrobatches = 8;

/// Eight layers of different times after an input. Layers 0, 4 and 7 may share a parameter.
Graph eight_layers(bool tied) {
  Graph graph = testing::chain_graph({3, 1, 2, 1, 2, 3, 1, 2}, {5, 3, 4, 2, 3, 7, 2, 4}, 1000_B, 4000_B);
  for (const std::size_t i : {0U, 4U, 7U}) {
    if (tied) graph.layers[i].tied = {{"embedding", 2000_B}};
  }
  Layer input;
  input.id = input.name = "data";
  input.kind = kInputKind;
  input.outputs = {{1000_B, {}, "", false}};
  graph.layers.push_back(input);
  graph.edges.push_back({8, 0, 0});
  graph.microbatch_samples = 2;
  validate(graph);
  return graph;
}

/// The lists of `plan` as a schedule by hand.
std::vector<std::vector<Action>> lists_of(const Plan& plan) {
  auto lists = BoundPlan(plan).action_lists();
  for (auto& list : lists) std::erase_if(list, [](const Action& action) { return action.kind == ActionKind::Update; });
  return lists;
}

/// One way to ask for a plan.
struct Wish {
  std::string strategy = "profile";
  int chunks = 1;
  std::vector<int> replicas = {};
  bool recompute = false;
  bool tied = false;
};

std::string text_of(const Wish& wish) {
  return wish.strategy + ", " + std::to_string(wish.chunks) + " chunks, " + std::to_string(wish.replicas.size()) +
         " replica counts" + (wish.recompute ? ", recomputing" : "") + (wish.tied ? ", tied" : "");
}

/// Every combination that `schedule` says that it supports.
std::vector<Wish> wishes(const ScheduleEntry& schedule) {
  std::vector<Wish> out;
  for (const bool recompute : {false, true}) {
    for (const bool tied : {false, true}) {
      if (tied && schedule.weights != Weights::Flushed) continue;
      if (runs_chunks(schedule, 1)) out.push_back({"profile", 1, {}, recompute, tied});
      if (runs_chunks(schedule, 1))
        out.push_back({"profile", 1, schedule.equal_replicas ? std::vector{2, 2} : std::vector{2, 1}, recompute, tied});
      if (schedule.chunked) out.push_back({"profile", 2, {}, recompute, tied});
      if (schedule.chunked && schedule.name != "listed") out.push_back({"profile", 2, {2, 2, 2, 2}, recompute, tied});
      if (schedule.name == "listed") continue;  // lists fit the stages that they were written for
      if (runs_chunks(schedule, 1)) out.push_back({"auto", 1, {}, recompute, tied});
      if (schedule.chunked) out.push_back({"auto", 2, {}, recompute, tied});
    }
  }
  return out;
}

Constraints constraints_of(const ScheduleEntry& schedule, const Wish& wish, const Graph& graph,
                           const Topology& topology) {
  Constraints out;
  out.plan.schedule = schedule.name;
  out.plan.microbatches = kMicrobatches;
  out.plan.recompute = wish.recompute && schedule.trains;
  if (wish.chunks > 1 || wish.strategy != "auto") out.chunks = wish.chunks;
  out.replicas = wish.replicas;
  if (schedule.name != "listed") return out;
  Constraints other = out;
  other.plan.schedule = wish.chunks > 1 ? "interleaved-1f1b" : "1f1b";
  const auto made = plan_with(wish.strategy, graph, topology, simulated_costs(), other);
  out.plan.listed = lists_of(std::get<Ranking>(made).plans.front().plan);
  return out;
}

class EverySchedule : public ::testing::TestWithParam<std::string> {};

TEST_P(EverySchedule, IsPlannedProvedAndPredicted) {
  const ScheduleEntry& schedule = schedule_by_name(GetParam());
  const Topology topology = testing::flat_topology(kDevices, 1e5, 0.01);
  for (const Wish& wish : wishes(schedule)) {
    SCOPED_TRACE(text_of(wish));
    const Graph graph = eight_layers(wish.tied);
    const Constraints constraints = constraints_of(schedule, wish, graph, topology);
    const StrategyResult result = plan_with(wish.strategy, graph, topology, simulated_costs(), constraints);
    ASSERT_TRUE(std::holds_alternative<Ranking>(result)) << std::get<Infeasible>(result).reason;
    const Plan& plan = std::get<Ranking>(result).plans.front().plan;
    EXPECT_EQ(plan.schedule, schedule.name);
    if (constraints.chunks) { EXPECT_EQ(plan.chunks, wish.chunks); }
    EXPECT_EQ(format::parse_plan(format::plan_json(plan), "plan.json"), plan);

    const BoundPlan bound(plan);
    VerifyOptions options;
    options.steps = bound.step_window().steps;
    const auto proof = verify(bound, bound.action_lists(options.steps), graph, topology, options);
    ASSERT_TRUE(std::holds_alternative<Verified>(proof)) << std::get<Infeasible>(proof).reason;

    const auto predicted = predict(graph, topology, bound);
    ASSERT_TRUE(std::holds_alternative<Prediction>(predicted)) << std::get<Infeasible>(predicted).reason;
    const auto& prediction = std::get<Prediction>(predicted);
    const std::string text = format::prediction_json(prediction);
    EXPECT_EQ(format::prediction_json(format::parse_prediction(text, "prediction.json")), text);
    // No rank is busy for longer than a step, and its parts fill the step.
    for (int position = 0; position < bound.positions(); ++position) {
      Seconds parts;
      for (const int s : bound.stages_at(position)) {
        const StagePrediction& stage = prediction.stages[to_index(s)];
        parts += stage.compute + stage.update + stage.reduce + stage.exposed_transfer + stage.bubble;
        EXPECT_GT(stage.compute, Seconds(0));
      }
      EXPECT_NEAR(parts.value, prediction.iteration.value, 1e-9 * prediction.iteration.value);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, EverySchedule, ::testing::ValuesIn(testing::names_of(schedules())),
                         testing::AfterEntry());

TEST(TiedParameters, AreRefusedUnderAsynchronousSchedules) {
  Constraints constraints;
  constraints.plan.schedule = "pipedream";
  EXPECT_THAT(
      [&] {
        (void)plan_with("profile", eight_layers(true), testing::flat_topology(3), simulated_costs(), constraints);
      },
      ::testing::ThrowsMessage<std::invalid_argument>("parameter \"embedding\" is shared by several layers, which "
                                                      "schedule \"pipedream\" cannot keep equal; use 1f1b"));
}

}  // namespace
}  // namespace stagecraft::partitioner
