#include "executor/run/evaluation/validation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"
#include "executor/run/binding/loss_shares.h"
#include "executor/run/evaluation/prediction_watcher.h"

namespace stagecraft::run {
namespace {

/// The first `steps` steps of other data, again and again: data are loaded ahead, beyond the end of a pass.
class RepeatedPass : public data::DataSource {
 public:
  RepeatedPass(const data::DataSource& data, std::int64_t steps) : data_(data), steps_(steps) {}
  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    return data_.batch(step % steps_, microbatch, microbatches, samples, inputs);
  }

 private:
  const data::DataSource& data_;
  std::int64_t steps_;
};

using Tensors = std::unordered_map<std::string, at::Tensor>;

const at::Tensor& find(const Tensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  if (found != tensors.end()) return found->second;
  throw std::invalid_argument("the model has \"" + name + "\" in evaluation mode, but not in training");
}

WorkerOptions worker_options(std::uint64_t seed, c10::Device device, const std::function<double()>& now) {
  WorkerOptions out;
  out.seed = seed;
  out.now = now;
  out.device = device;
  return out;
}

/// Numbers before the losses in a rank's message.
constexpr std::size_t kHead = 5;

}  // namespace

Plan forward_plan(const BoundPlan& plan) {
  Plan out = plan.plan();
  out.schedule = "listed";
  out.listed = plan.action_lists();
  for (std::vector<Action>& list : out.listed)
    std::erase_if(list, [](const Action& action) { return action.kind != ActionKind::Forward; });
  for (Stage& stage : out.stages) {
    stage.recompute = false;
    stage.recompute_every = 0;
  }
  return out;
}

/// What this rank found in a pass.
struct TrainingValidation::Part {
  std::vector<double> losses;  // of microbatches_of(rank_)
  std::optional<Predictions> predictions = Predictions{};
};

TrainingValidation::TrainingValidation(const BoundModel& bound, const ValidationOptions& options, int rank,
                                       channel::Channel& channel, std::uint64_t seed, c10::Device device,
                                       const std::function<double()>& now)
    : plan_(forward_plan(bound.plan)),
      bound_(bind_model(plan_, *options.model)),
      every_(options.every),
      rank_(rank),
      channel_(channel),
      now_(now),
      pieces_(evaluation_pieces(*options.data, *plan_.plan().microbatch_samples, options.samples)),
      steps_((pieces_.microbatches + plan_.plan().microbatches - 1) / plan_.plan().microbatches),
      data_(std::make_unique<RepeatedPass>(*options.data, steps_)),
      worker_(std::make_unique<SynchronousWorker>(bound_, rank, channel, *data_, worker_options(seed, device, now))) {
  // A loss that is not finite is a result.
  worker_->on_nonfinite(stage::OnNonfinite::Warn, [](const std::string&) {});
  if (!device.is_cpu()) worker_->warm_up(*data_);
}

bool TrainingValidation::is_due(std::int64_t done, std::int64_t steps) const {
  return done == steps || (every_ > 0 && done % every_ == 0);
}

void TrainingValidation::follow(StageWorker& training) {
  Tensors trained;
  training.visit_stages([&](int, stage::StageProgram& program, stage::Optimizer& optimizer) {
    const std::vector<stage::Parameter>& parameters = program.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor average = optimizer.state(i).average;
      trained.emplace(parameters[i].name, average.defined() ? average : parameters[i].value);
    }
    for (const stage::Parameter& buffer : program.buffers()) trained.emplace(buffer.name, buffer.value);
  });
  const at::NoGradGuard no_graph;
  worker_->visit_stages([&](int, stage::StageProgram& program, stage::Optimizer& optimizer) {
    std::vector<at::Tensor> values;
    for (const stage::Parameter& parameter : program.parameters()) values.push_back(find(trained, parameter.name));
    program.bind(values);
    optimizer.rebind(std::move(values));
    for (const stage::Parameter& buffer : program.buffers()) at::Tensor(buffer.value).copy_(find(trained, buffer.name));
  });
}

std::vector<std::int64_t> TrainingValidation::microbatches_of(int rank) const {
  std::vector<std::int64_t> out;
  const int in_step = plan_.plan().microbatches;
  const std::vector<int> of_step = plan_.microbatches_of(loss_stage(bound_), rank, in_step);
  for (std::int64_t first = 0; first < pieces_.microbatches; first += in_step) {
    for (const int m : of_step) {
      if (first + m < pieces_.microbatches) out.push_back(first + m);
    }
  }
  return out;
}

void TrainingValidation::compute(Part& part) {
  const int stage = loss_stage(bound_);
  std::vector<int> order;  // of this rank's losses in a step
  for (const Action& action : worker_->actions()) {
    if (action.kind == ActionKind::Forward && action.stage == stage) order.push_back(action.microbatch);
  }
  const std::int64_t in_step = plan_.plan().microbatches;
  std::optional<PredictionWatcher> watcher;
  if (!order.empty()) watcher.emplace();
  for (std::int64_t k = 0; k < steps_; ++k, ++done_) {
    // The last step may reach beyond the end of the data.
    const auto counts = [&](int microbatch) { return k * in_step + microbatch < pieces_.microbatches; };
    worker_->compute(done_);
    worker_->update_step(done_);
    (void)worker_->take_spans();
    for (const auto& [microbatch, loss] : worker_->take_losses(done_)) {
      if (counts(microbatch)) part.losses.push_back(loss);
    }
    if (!watcher) continue;
    const auto found = watcher->take(order.size());
    if (!found) part.predictions.reset();
    for (std::size_t i = 0; part.predictions && i < order.size(); ++i) {
      if (counts(order[i])) add(*part.predictions, (*found)[i]);
    }
  }
}

std::vector<double> TrainingValidation::packed(const Part& part) const {
  const Predictions found = part.predictions.value_or(Predictions{});
  std::vector<double> out{part.predictions ? 1.0 : 0.0, found.plain ? 1.0 : 0.0, static_cast<double>(found.count),
                          static_cast<double>(found.correct), found.sum};
  out.insert(out.end(), part.losses.begin(), part.losses.end());
  return out;
}

format::ModelEvaluation TrainingValidation::gather(const Part& part) {
  std::vector<double> losses(to_index(pieces_.microbatches));
  std::optional<Predictions> all = Predictions{};
  for (const int source : plan_.ranks_of(loss_stage(bound_))) {
    const std::vector<std::int64_t> microbatches = microbatches_of(source);
    if (microbatches.empty()) continue;
    std::vector<double> values;
    if (source == rank_) {
      values = packed(part);
    } else {
      const auto count = static_cast<std::int64_t>(kHead + microbatches.size());
      const at::Tensor arrived = channel_.receive({{count}, at::kDouble}, source, channel::kValidationTag)->wait();
      values.assign(arrived.const_data_ptr<double>(), arrived.const_data_ptr<double>() + count);
    }
    if (values[0] == 0) all.reset();
    if (all) {
      add(*all,
          {static_cast<std::int64_t>(values[2]), static_cast<std::int64_t>(values[3]), values[4], values[1] == 1});
    }
    for (std::size_t i = 0; i < microbatches.size(); ++i) losses[to_index(microbatches[i])] = values[kHead + i];
  }
  format::ModelEvaluation out;
  const int in_step = plan_.plan().microbatches;
  JointLoss joint(bound_.model, *data_, pieces_.microbatch_samples);
  for (std::int64_t k = 0; k < pieces_.microbatches; ++k)
    joint.add(losses[to_index(k)], k / in_step, to_int(k % in_step), in_step);
  out.loss = joint.value();
  out.samples = pieces_.microbatches * pieces_.microbatch_samples;
  out.samples_left = pieces_.samples_left;
  set_predictions(out, all);
  return out;
}

std::optional<format::ModelEvaluation> TrainingValidation::run(StageWorker& training) {
  const double begin = now_();
  follow(training);
  Part part;
  compute(part);
  std::optional<format::ModelEvaluation> out;
  if (rank_ == 0) {
    out = gather(part);
  } else if (!part.losses.empty()) {
    const std::vector<double> values = packed(part);
    at::Tensor message = at::empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
    std::ranges::copy(values, message.data_ptr<double>());
    channel_.send(message, 0, channel::kValidationTag)->wait();
  }
  if (out) out->time = Seconds(now_() - begin);
  return out;
}

}  // namespace stagecraft::run
