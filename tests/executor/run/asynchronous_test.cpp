#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "costmodel/index.h"
#include "executor/model/model.h"
#include "executor/run/run.h"
#include "executor/stage/stage_program.h"
#include "tests/support/models/laid_out_model.h"
#include "tests/support/models/planned_models.h"

// Compares asynchronous schedules with a single process that computes each microbatch, stage by stage, with the
// parameters that the schedule prescribes, and applies each update when the last of its microbatches is done.

namespace stagecraft::run {
namespace {

using stagecraft::testing::cut_plan;
using stagecraft::testing::even_cuts;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Tensors = std::vector<at::Tensor>;

/// The parameters of one stage: their positions in the whole program, and every version so far.
struct StageState {
  std::vector<std::size_t> places;
  std::vector<Tensors> versions;
  std::unique_ptr<stage::Optimizer> optimizer;
  std::map<int, std::vector<Tensors>> sums;  ///< by update and replica
  std::map<int, int> missing;                ///< microbatches that each update waits for
};

std::vector<double> simulated_losses(const PlannedModel& planned, const Plan& plan, const RunOptions& options) {
  const int steps = to_int(options.steps);
  const ScheduleEntry schedule = schedule_of(plan);
  PipelineShape shape = pipeline_shape(plan);
  shape.steps = steps;
  std::vector<int> all(planned.model.layers.size());
  std::iota(all.begin(), all.end(), 0);
  stage::StageProgram program(planned.model, all, {}, {}, options.seed, compute_place(plan, options.device));
  const auto layers = model::layers_of_stages(plan, planned.model);

  std::vector<StageState> stages(plan.stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    Tensors first;
    for (std::size_t i = 0; i < program.parameters().size(); ++i) {
      const int layer = program.parameters()[i].layer;
      if (std::find(layers[s].begin(), layers[s].end(), layer) == layers[s].end()) continue;
      stages[s].places.push_back(i);
      first.push_back(program.parameters()[i].value);
    }
    stages[s].optimizer = std::make_unique<stage::Optimizer>(with_types(options.optimizer, plan), first);
    stages[s].versions.push_back(first);
    for (int m = 0; m < plan.microbatches * steps; ++m) ++stages[s].missing[update_of(schedule, shape, to_int(s), m)];
  }
  const auto version_at = [&](int stage, int m) -> std::size_t {
    if (schedule.weights == Weights::StepBefore) return to_index(std::max(0, m / plan.microbatches - 1));
    const int replica = m % shape.replicas[to_index(stage)];
    std::size_t updates = 0;
    for (const Action& action : schedule.compute_actions(shape, stage, replica)) {
      if (action.kind == ActionKind::Update) ++updates;
      if (action.kind == ActionKind::Forward && action.microbatch == m) return updates;
    }
    throw std::logic_error("no forward");
  };

  std::vector<double> losses(to_index(steps));
  for (int m = 0; m < plan.microbatches * steps; ++m) {
    Tensors bound(program.parameters().size());
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const Tensors& version = stages[s].versions.at(version_at(to_int(s), m));
      for (std::size_t i = 0; i < version.size(); ++i) bound[stages[s].places[i]] = version[i];
    }
    program.bind(bound);
    const int step = m / plan.microbatches;
    stage::Flight flight = program.forward({},
                                           planned.data->batch(step, m % plan.microbatches, plan.microbatches,
                                                               *plan.microbatch_samples, program.data_inputs()),
                                           step, m % plan.microbatches);
    losses[to_index(step)] += flight.loss.item<double>();
    (void)program.backward(std::move(flight), {});
    for (std::size_t s = 0; s < stages.size(); ++s) {
      StageState& stage = stages[s];
      const auto replicas = to_index(shape.replicas[s]);
      const int update = update_of(schedule, shape, to_int(s), m);
      auto& sums = stage.sums[update];
      sums.resize(replicas, Tensors(stage.places.size()));
      int count = 0;
      for (int other = 0; other < plan.microbatches * steps; ++other)
        count += update_of(schedule, shape, to_int(s), other) == update;
      for (std::size_t i = 0; i < stage.places.size(); ++i) {
        at::Tensor& gradient = bound[stage.places[i]].mutable_grad();
        at::Tensor& sum = sums[to_index(m) % replicas][i];
        if (gradient.defined()) sum = sum.defined() ? sum.add(gradient) : gradient;
        gradient = at::Tensor();
      }
      if (--stage.missing[update] > 0) continue;
      Tensors next;
      for (std::size_t i = 0; i < stage.places.size(); ++i) {
        const at::Tensor& newest = stage.versions.back()[i];
        next.push_back(stage::make_leaf(newest.detach().clone(), stage::gradient_type(newest)));
        at::Tensor total;
        for (const Tensors& gradients : sums) {
          if (gradients[i].defined()) total = total.defined() ? total.add(gradients[i]) : gradients[i];
        }
        next.back().mutable_grad() = total;
      }
      stage.optimizer->rebind(next);
      stage.optimizer->step(count);
      for (at::Tensor& value : next) value.mutable_grad() = at::Tensor();
      stage.versions.push_back(std::move(next));
    }
  }
  for (double& loss : losses) loss /= plan.microbatches;
  return losses;
}

struct Case {
  std::string name;
  std::map<std::string, std::string> set;
  bool laid_out = false;
  StateTypes types = {};
};

TEST(AsynchronousRun, EqualsASingleProcessWithItsDelaysBitForBit) {
  for (const Case& model :
       {Case{"mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "4"}}}, Case{"convnet", {{"channels", "4"}}},
        Case{"convnet", {{"channels", "4"}}, /*laid_out=*/true},
        Case{"mlp",
             {{"inputs", "12"}, {"width", "16"}, {"layers", "4"}},
             false,
             {StateType::Bfloat16, StateType::Float32, StateType::Bfloat16}},
        Case{"transformer",
             {{"layers", "2"},
              {"width", "16"},
              {"heads", "2"},
              {"vocabulary", "16"},
              {"feedforward", "8"},
              {"sequence", "4"}}}}) {
    model::Model built = intake::build_model(model.name, model.set);
    if (model.laid_out) built = testing::laid_out_model(std::move(built));
    const bool reduced = model.types != StateTypes{};
    const PlannedModel planned = planned_model(std::move(built), 2, reduced ? at::kBFloat16 : at::kFloat, model.types);
    const int layers = to_int(planned.model.layers.size());
    for (const char* schedule : {"pipedream", "pipedream-2bw"}) {
      for (const std::vector<int>& replicas :
           std::vector<std::vector<int>>{{1}, {1, 1}, {1, 1, 1}, {2, 1}, {1, 2}, {2}}) {
        const Plan plan = cut_plan(planned, even_cuts(layers, to_int(replicas.size())), replicas, schedule, 6);
        for (const char* optimizer : {"sgd", "adamw"}) {
          RunOptions options;
          options.steps = 4;
          options.optimizer.name = optimizer;
          options.optimizer.learning_rate = 0.05;
          options.optimizer.momentum = options.optimizer.name == "sgd" ? 0.9 : 0;
          const RunResult result = run_local(plan, planned.model, *planned.data, options, milliseconds(60000));
          EXPECT_EQ(result.measurement.losses, simulated_losses(planned, plan, options))
              << model.name << " " << schedule << " " << replicas.size() << " stages, " << replicas.front()
              << " replicas of the first, " << optimizer;
        }
      }
    }
  }
}

TEST(AsynchronousRun, DiffersFromSynchronousTraining) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "4"}}, 2);
  RunOptions options;
  options.steps = 4;
  options.optimizer.learning_rate = 0.05;
  const auto losses = [&](const char* schedule) {
    return run_local(cut_plan(planned, {3}, {1, 1}, schedule, 6), planned.model, *planned.data, options,
                     milliseconds(60000))
        .measurement.losses;
  };
  EXPECT_NE(losses("pipedream"), losses("1f1b"));
  EXPECT_NE(losses("pipedream-2bw"), losses("1f1b"));
}

TEST(AsynchronousRun, RefusesWhatWouldMakeEveryUpdateWait) {
  const PlannedModel gpt = planned_model(
      "gpt", {{"layers", "2"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "32"}, {"sequence", "8"}}, 2);
  EXPECT_THAT(
      [&] {
        (void)run_local(cut_plan(gpt, {3}, {1, 1}, "pipedream", 4), gpt.model, *gpt.data, {}, milliseconds(60000));
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("is shared by several layers, which schedule \"pipedream\"")));
  const PlannedModel mlp = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "4"}}, 2);
  RunOptions options;
  options.optimizer.clip_norm = 1;
  EXPECT_THAT(
      [&] {
        (void)run_local(cut_plan(mlp, {3}, {1, 1}, "pipedream", 4), mlp.model, *mlp.data, options, milliseconds(60000));
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("is asynchronous and never has the whole gradient")));
  options.optimizer.clip_norm = 0;
  options.check = true;
  EXPECT_THAT(
      [&] {
        (void)run_local(cut_plan(mlp, {3}, {1, 1}, "pipedream", 4), mlp.model, *mlp.data, options, milliseconds(60000));
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("has none to compare")));
}

}  // namespace
}  // namespace stagecraft::run
