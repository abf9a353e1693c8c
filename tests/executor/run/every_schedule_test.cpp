#include <gtest/gtest.h>

#include <cmath>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "executor/run/run.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/table_names.h"

// Every entry of the table of schedules runs, trains like a single process, and keeps the order of its lists.

namespace stagecraft::run {
namespace {

using stagecraft::testing::cut_plan;
using stagecraft::testing::even_cuts;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;

const PlannedModel& mlp() {
  static const PlannedModel planned = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "6"}}, 3);
  return planned;
}

/// The same with parameters in bfloat16.
const PlannedModel& reduced_mlp() {
  static const PlannedModel planned =
      planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "6"}}, 3, at::kBFloat16,
                    {StateType::Bfloat16, StateType::Float32, StateType::Bfloat16});
  return planned;
}

/// A plan with `schedule`; the schedule "listed" gets the lists of gpipe or interleaved-1f1b.
Plan plan_of(const PlannedModel& planned, const ScheduleEntry& schedule, const std::vector<int>& replicas, int chunks) {
  const int layers = to_int(planned.model.layers.size());
  const std::string listed = chunks > 1 ? "interleaved-1f1b" : "gpipe";
  // A number of microbatches that every schedule takes: a multiple of the positions, and enough to fill the pipeline.
  constexpr int kMicrobatches = 12;
  Plan plan = cut_plan(planned, even_cuts(layers, to_int(replicas.size())), replicas,
                       schedule.name == "listed" ? listed : schedule.name, kMicrobatches, chunks);
  if (schedule.name == "listed") {
    plan.listed = BoundPlan(plan).action_lists();
    for (auto& list : plan.listed) std::erase_if(list, [](const Action& a) { return a.kind == ActionKind::Update; });
  }
  plan.schedule = schedule.name;
  return plan;
}

void expect_runs(const ScheduleEntry& schedule, const std::vector<int>& replicas, int chunks,
                 StateSharding sharding = StateSharding::None, const PlannedModel& planned = mlp()) {
  Plan plan = plan_of(planned, schedule, replicas, chunks);
  plan.sharding = sharding;
  const bool compares = schedule.weights == Weights::Flushed && schedule_of(plan).trains;
  RunOptions options;
  options.steps = 3;
  options.optimizer.learning_rate = 0.01;
  options.check = compares;
  const RunResult result = run_local(plan, planned.model, *planned.data, options, std::chrono::minutes(1));
  const std::string what = schedule.name + " on " + std::to_string(replicas.size()) + " stages, " +
                           std::to_string(chunks) + " chunks, " + std::to_string(BoundPlan(plan).ranks().size()) +
                           " ranks";
  // A measurement out of the lists' order ends the run.
  EXPECT_EQ(result.steps_done, 3) << what;
  ASSERT_EQ(result.measurement.losses.size(), 3U) << what;
  for (const double loss : result.measurement.losses) EXPECT_TRUE(std::isfinite(loss)) << what;
  if (!compares) return;
  ASSERT_TRUE(result.check) << what;
  EXPECT_GT(result.check->values, 0) << what;
  EXPECT_TRUE(is_close(*result.check)) << what << ": " << check_text(*result.check);
}

class EverySchedule : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Table, EverySchedule, ::testing::ValuesIn(testing::names_of(schedules())),
                         testing::AfterEntry());

TEST_P(EverySchedule, RunsPipelines) {
  const ScheduleEntry& schedule = schedule_by_name(GetParam());
  if (!runs_chunks(schedule, 1)) GTEST_SKIP() << "it runs several stages on a rank";
  for (const std::size_t stages : {1U, 2U, 3U}) expect_runs(schedule, std::vector<int>(stages, 1), 1);
}

TEST_P(EverySchedule, RunsReplicas) {
  const ScheduleEntry& schedule = schedule_by_name(GetParam());
  std::vector<std::vector<int>> all{{3}, {2, 1}, {1, 2}, {2, 3, 1}};
  if (schedule.equal_replicas) all = {{3}, {2, 2}, {3, 3}};
  for (const std::vector<int>& replicas : all) {
    if (runs_chunks(schedule, 1)) expect_runs(schedule, replicas, 1);
  }
  if (schedule.equal_replicas) expect_runs(schedule, {2, 2, 2, 2}, 2);
}

TEST_P(EverySchedule, RunsReplicasThatDivideTheStateOfTraining) {
  const ScheduleEntry& schedule = schedule_by_name(GetParam());
  if (schedule.weights != Weights::Flushed) GTEST_SKIP() << "replicas divide nothing";
  std::vector<std::vector<int>> all{{3}, {2, 1}, {2, 3, 1}};
  if (schedule.equal_replicas) all = {{3}, {2, 2}};
  for (const StateSharding sharding : {StateSharding::Optimizer, StateSharding::Gradients, StateSharding::Parameters}) {
    for (const std::vector<int>& replicas : all) {
      if (runs_chunks(schedule, 1)) expect_runs(schedule, replicas, 1, sharding);
    }
    if (schedule.equal_replicas) expect_runs(schedule, {2, 2, 2, 2}, 2, sharding);
  }
}

TEST_P(EverySchedule, RunsWithParametersInBfloat16) {
  const ScheduleEntry& schedule = schedule_by_name(GetParam());
  if (runs_chunks(schedule, 1)) {
    expect_runs(schedule, {1, 1, 1}, 1, StateSharding::None, reduced_mlp());
    expect_runs(schedule, {2, 2}, 1, StateSharding::None, reduced_mlp());
    if (schedule.weights == Weights::Flushed) expect_runs(schedule, {2, 2}, 1, StateSharding::Optimizer, reduced_mlp());
  }
  if (schedule.chunked) expect_runs(schedule, {1, 1, 1, 1}, 2, StateSharding::None, reduced_mlp());
}

TEST_P(EverySchedule, RunsSeveralStagesOnARank) {
  const ScheduleEntry& schedule = schedule_by_name(GetParam());
  if (!schedule.chunked) GTEST_SKIP() << "it runs one stage on a rank";
  expect_runs(schedule, {1, 1, 1, 1}, 2);
  if (runs_chunks(schedule, 3)) expect_runs(schedule, {1, 1, 1, 1, 1, 1}, 3);
}

}  // namespace
}  // namespace stagecraft::run
