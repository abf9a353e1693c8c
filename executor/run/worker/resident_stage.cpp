#include "executor/run/worker/resident_stage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "costmodel/index.h"
#include "executor/device/dtype.h"

namespace stagecraft::run {
namespace {

/// Boundaries of a stage's values, and their slots by boundary.
struct CrossingValues {
  std::vector<stage::ReceivedValue> received;
  std::vector<model::ValueRef> sent;
};

CrossingValues find_crossing_values(const model::Model& model, const BoundPlan& bound, ResidentStage& resident) {
  const Plan& plan = bound.plan();
  std::unordered_map<std::string, int> index;
  for (std::size_t i = 0; i < model.layers.size(); ++i) index[model.layers[i].name] = to_int(i);
  const auto value_of = [&](const BoundaryTensor& tensor) {
    return model::ValueRef{index.at(tensor.layer), *tensor.output, -1};
  };
  CrossingValues out;
  resident.slots.resize(plan.boundaries.size());
  for (const int b : bound.incoming(resident.stage)) {
    for (const BoundaryTensor& tensor : plan.boundaries[to_index(b)].tensors) {
      resident.slots[to_index(b)].push_back(to_int(out.received.size()));
      out.received.push_back({value_of(tensor), tensor.gradient});
    }
  }
  std::map<std::pair<int, int>, int> sent_slot;
  for (const int b : bound.outgoing(resident.stage)) {
    for (const BoundaryTensor& tensor : plan.boundaries[to_index(b)].tensors) {
      const model::ValueRef value = value_of(tensor);
      const auto [it, fresh] = sent_slot.emplace(std::pair(value.layer, value.output), to_int(out.sent.size()));
      if (fresh) out.sent.push_back(value);
      resident.slots[to_index(b)].push_back(it->second);
    }
  }
  return out;
}

/// Zeros in the shapes of what the stage receives, in the order of its program.
std::vector<at::Tensor> zeros_received(const ResidentStage& resident, const BoundPlan& plan, c10::Device device) {
  std::vector<at::Tensor> out;
  for (const int b : plan.incoming(resident.stage)) {
    const auto& tensors = plan.plan().boundaries[to_index(b)].tensors;
    const std::vector<int>& slots = resident.slots[to_index(b)];
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const auto slot = to_index(slots[t]);
      if (out.size() <= slot) out.resize(slot + 1);
      out[slot] = at::zeros(tensors[t].shape, at::TensorOptions(device::dtype_of(tensors[t].dtype)).device(device));
    }
  }
  return out;
}

/// A step on a few values that nobody uses.
void warm_up(const stage::OptimizerOptions& options, c10::Device device) {
  constexpr std::int64_t kValues = 1024;
  at::Tensor value = at::ones({kValues}, at::TensorOptions(at::kFloat).device(device));
  value.mutable_grad() = at::ones_like(value);
  stage::Optimizer(options, {value}).step(1);
}

}  // namespace

void warm_up(ResidentStage& resident, const BoundModel& bound, const stage::OptimizerOptions& optimizer,
             const stage::Placement& placement, std::vector<at::Tensor> data) {
  const bool trains = bound.plan.schedule().trains;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;  // with their values
  for (const stage::Parameter& buffer : resident.program->buffers())
    buffers.emplace_back(buffer.value, buffer.value.detach().clone());
  std::vector<at::Tensor> gradients;
  for (stage::Parameter& parameter : resident.program->leaves())
    gradients.push_back(std::exchange(parameter.value.mutable_grad(), at::Tensor()));
  stage::Flight flight =
      resident.program->forward(zeros_received(resident, bound.plan, placement.device), std::move(data), 0, 0, trains);
  if (trains) {
    std::vector<at::Tensor> sent_gradients;
    for (const at::Tensor& sent : flight.sent)
      sent_gradients.push_back(sent.requires_grad() ? at::zeros_like(sent) : at::Tensor());
    (void)resident.program->backward(std::move(flight), sent_gradients);
    warm_up(optimizer, placement.device);
  }
  for (std::size_t i = 0; i < gradients.size(); ++i)
    resident.program->leaves()[i].value.mutable_grad() = std::move(gradients[i]);
  const at::NoGradGuard no_graph;
  for (auto& [buffer, before] : buffers) buffer.copy_(before);
}

ResidentStage make_resident_stage(const BoundModel& bound, int stage, int microbatches,
                                  const stage::OptimizerOptions& optimizer, std::uint64_t seed,
                                  stage::Placement placement) {
  ResidentStage out;
  out.stage = stage;
  CrossingValues values = find_crossing_values(bound.model, bound.plan, out);
  const auto number = to_index(stage);
  out.program = std::make_unique<stage::StageProgram>(bound.model, bound.layers[number], std::move(values.received),
                                                      std::move(values.sent), seed, placement);
  const Stage& planned = bound.plan.plan().stages[number];
  if (!bound.plan.schedule().trains) out.program->evaluate();
  if (planned.recompute) out.program->recompute_every(planned.recompute_every);
  out.optimizer = stage::optimizer_of(optimizer, out.program->parameters());
  const auto count = to_index(microbatches);
  out.flights.resize(count);
  out.input_gradients.resize(count);
  out.rests.resize(count);
  return out;
}

}  // namespace stagecraft::run
