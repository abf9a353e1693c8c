#include "executor/run/worker/asynchronous_worker.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <stdexcept>
#include <string>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::run {
namespace {

/// One buffer of zeros with a view for each of `values`, of its shape, its layout and the type of its gradients, and at
/// its end one value for each.
std::pair<at::Tensor, std::vector<at::Tensor>> flat_like(const std::vector<at::Tensor>& values) {
  auto count = static_cast<std::int64_t>(values.size());
  for (const at::Tensor& value : values) count += value.numel();
  const c10::Device device = values.empty() ? c10::Device(c10::kCPU) : values.front().device();
  const at::ScalarType type = values.empty() ? at::kFloat : stage::gradient_type(values.front());
  std::pair<at::Tensor, std::vector<at::Tensor>> out{at::zeros({count}, at::TensorOptions(type).device(device)), {}};
  std::int64_t offset = 0;
  for (const at::Tensor& value : values) {
    out.second.push_back(stage::view_laid_out_like(out.first, offset, value));
    offset += value.numel();
  }
  return out;
}

}  // namespace

AsynchronousWorker::AsynchronousWorker(const BoundModel& bound, int rank, channel::Channel& channel,
                                       const data::DataSource& data, const WorkerOptions& options)
    : StageWorker(bound, rank, channel, data, options, options.steps) {
  if (setup().optimizer.clip_norm > 0) {
    throw std::invalid_argument("schedule \"" + setup().plan().schedule +
                                "\" is asynchronous and never has the whole gradient, so it cannot clip; use 1f1b");
  }
  if (const auto tied = tied_of_rank(bound.plan, rank); !tied.empty()) {
    throw std::invalid_argument("parameter \"" + tied.front().parameter +
                                "\" is shared by several layers, which schedule \"" + setup().plan().schedule +
                                "\" cannot keep equal; use 1f1b");
  }
  const PipelineShape shape = bound.plan.shape(setup().list_steps);
  for (ResidentStage& stage : stages()) {
    StageState& state = states_.emplace_back();
    for (stage::Parameter& parameter : stage.program->parameters()) parameter.value.mutable_grad() = at::Tensor();
    state.versions =
        std::make_unique<stage::WeightVersions>(bound.plan.schedule().weights, *stage.program, *stage.optimizer);
    for (int m = 0; m < setup().plan().microbatches * setup().list_steps; ++m) {
      auto& [count, last] = state.covered[update_of(bound.plan.schedule(), shape, stage.stage, m)];
      ++count;
      last = m;
    }
  }
}

AsynchronousWorker::StageState& AsynchronousWorker::state_of(const ResidentStage& stage) {
  return states_[to_index(&stage - stages().data())];
}

void AsynchronousWorker::on_nonfinite(stage::OnNonfinite what, std::function<void(const std::string&)> tell) {
  if (what == stage::OnNonfinite::Skip) {
    throw std::invalid_argument(
        "schedule \"" + setup().plan().schedule +
        "\" is asynchronous, so ranks cannot skip a step together; use 1f1b, or --on-nonfinite stop or warn");
  }
  StageWorker::on_nonfinite(what, std::move(tell));
}

void AsynchronousWorker::replay(const std::function<void(std::int64_t step)>& done) {
  std::map<int, int> left;  // backwards of each step
  for (const Action& action : setup().actions) {
    if (action.kind == ActionKind::Backward) ++left[action.microbatch / setup().plan().microbatches];
  }
  int step = 0;
  for (std::size_t i = 0; i < setup().actions.size(); ++i) {
    const Action& action = setup().actions[i];
    if (action.microbatch >= 0) step = action.microbatch / setup().plan().microbatches;
    perform(i, setup().first_step + step);
    if (action.kind != ActionKind::Backward || --left[step] > 0) continue;
    losses().end_step(setup().first_step + step);
    spans().settle();
    done(setup().first_step + step);
  }
  finish_sends();
}

void AsynchronousWorker::before_forward(ResidentStage& stage, const Action& action) {
  state_of(stage).versions->begin(action.microbatch, action.microbatch / setup().plan().microbatches);
}

double AsynchronousWorker::before_backward(ResidentStage& stage, const Action& action) {
  state_of(stage).versions->resume(action.microbatch);
  return 1;
}

void AsynchronousWorker::after_backward(ResidentStage& stage, const Action& action, bool) {
  state_of(stage).versions->collect(action.microbatch);
}

void AsynchronousWorker::reduce(const Action& action) {
  const at::NoGradGuard no_graph;
  const ResidentStage& stage = resident(action.stage);
  std::vector<at::Tensor>& waiting = state_of(stage).versions->waiting();
  for (const GradientSum& sum : setup().bound.sums[to_index(action.stage)]) {
    std::vector<at::Tensor> values;
    for (const std::size_t place : sum.parameters) values.push_back(stage.program->parameters()[place].value);
    auto [flat, views] = flat_like(values);
    // How many replicas have each gradient: an optimizer must not decay a parameter without one.
    const at::Tensor counts = flat.narrow(0, flat.numel() - to_int(views.size()), to_int(views.size()));
    for (std::size_t i = 0; i < views.size(); ++i) {
      const at::Tensor& gradient = waiting[sum.parameters[i]];
      if (!gradient.defined()) continue;
      views[i].copy_(gradient);
      counts[to_int(i)].fill_(1);
    }
    setup()
        .channel
        .start({.kind = Collective::AllReduce, .values = flat, .members = sum.ranks, .tag = channel::kBucketsTag})
        ->wait();
    for (std::size_t i = 0; i < views.size(); ++i) {
      at::Tensor& gradient = waiting[sum.parameters[i]];
      if (gradient.defined() || counts[to_int(i)].item<float>() > 0) gradient = views[i];
    }
  }
}

void AsynchronousWorker::update(const Action& action) {
  const ResidentStage& stage = resident(action.stage);
  StageState& state = state_of(stage);
  const auto& [count, last] = state.covered.at(state.versions->updates());
  const std::int64_t step = setup().first_step + last / setup().plan().microbatches;
  for (std::size_t i = 0; setup().on_cpu() && i < state.versions->waiting().size(); ++i) {
    const at::Tensor& gradient = state.versions->waiting()[i];
    if (gradient.defined() && !stage::all_finite(gradient))
      guard().found(step, "the gradient of \"" + stage.program->parameters()[i].name + "\"");
  }
  state.versions->update(count, stage::rate_factor(setup().optimizer.rate, step));
}

}  // namespace stagecraft::run
