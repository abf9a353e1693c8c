#include "executor/run/run_job.h"

#include <fmt/format.h>

#include <stdexcept>

#include "costmodel/format/plan_json.h"
#include "costmodel/index.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/files/tensor_files.h"
#include "executor/run/evaluation.h"
#include "executor/stage/optimizer_options.h"

namespace stagecraft::run {
namespace {

model::Model load_model(const BoundPlan& bound, const JobRequest& request, model::ModelMode mode) {
  const Plan& plan = bound.plan();
  auto settings = plan.options;
  for (const auto& [key, value] : request.settings) settings[key] = value;
  return request.build(request.model.empty() ? plan.model : request.model, settings, mode);
}

model::ModelMode mode_of(const BoundPlan& bound) {
  return bound.schedule().trains ? model::ModelMode::Training : model::ModelMode::Evaluation;
}

}  // namespace

RunJob::RunJob(const JobRequest& request)
    : data_name(request.data),
      validation_name(request.validation),
      plan(format::read_plan(request.plan)),
      model(load_model(plan, request, mode_of(plan))),
      bound(bind_model(plan, model)) {
  using data::DataOrder;
  data =
      data::make_data_source(request.data, model, request.seed, trains() ? DataOrder::Training : DataOrder::Evaluation);
  if (!trains()) {
    pass = whole_pass(plan.plan(), *data);
  } else if (!validation_name.empty()) {
    evaluated = load_model(plan, request, model::ModelMode::Evaluation);
    validation = data::make_data_source(validation_name, *evaluated, request.seed, DataOrder::Evaluation);
  }
}

int RunJob::ranks() const { return to_int(plan.ranks().size()); }

std::int64_t steps_of_epochs(const RunJob& job, std::int64_t epochs) {
  const Plan& plan = job.plan.plan();
  if (!job.trains()) throw std::invalid_argument("schedule \"" + plan.schedule + "\" goes through the data once");
  const std::optional<std::int64_t> samples = job.data->samples();
  if (!samples) throw std::invalid_argument(fmt::format("data source \"{}\" is endless; use --steps", job.data_name));
  const std::int64_t step = plan.microbatch_samples.value_or(1) * plan.microbatches;
  return (epochs * *samples + step - 1) / step;
}

void check_validation(const RunJob& job, std::optional<std::int64_t> samples) {
  if (job.validation_name.empty()) return;
  const Plan& plan = job.plan.plan();
  if (!job.trains()) throw std::invalid_argument("schedule \"" + plan.schedule + "\" trains nothing");
  if (!job.validation->samples() && !samples) {
    throw std::invalid_argument(
        fmt::format("data source \"{}\" is endless; use --validate-samples", job.validation_name));
  }
  (void)evaluation_pieces(*job.validation, plan.microbatch_samples.value_or(1), samples);
}

void check_validation_steps(const RunJob& job, std::int64_t every, std::int64_t steps) {
  if (!job.validation || !job.plan.asynchronous() || every == 0 || every >= steps) return;
  throw std::invalid_argument("schedule \"" + job.plan.plan().schedule +
                              "\" is asynchronous, so its pipeline is empty only after the last step; give "
                              "--validate-data alone");
}

void check_state(const RunJob& job, const RunOptions& options) {
  std::vector<std::string> names;
  for (const model::LayerSpec& layer : job.model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters)
      if (parameter.trainable) names.push_back(parameter.name);
  }
  stage::check_groups(options.optimizer.groups, names);
  const CheckpointOptions& checkpoint = options.checkpoint;
  if (!checkpoint.folder.empty()) {
    checkpoint::check_checkpoint_folder(checkpoint.folder, checkpoint.resume);
    check_can_resume(job.bound, checkpoint, options.optimizer, options.seed);
  }
  if (!checkpoint.weights.empty()) {
    const checkpoint::TiedNames tied = intake::tied_names(job.model.name);
    checkpoint::check_weight_names(checkpoint::open_weights(checkpoint.weights, job.model, tied), job.model, tied);
  }
}

}  // namespace stagecraft::run
