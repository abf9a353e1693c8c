#include "executor/run/resident_stage.h"

#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "costmodel/index.h"

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
  CrossingValues out;
  std::map<std::pair<int, int>, int> sent_slot;
  for (const Boundary& boundary : plan.boundaries) {
    std::vector<int>& slots = resident.slots.emplace_back();
    for (const BoundaryTensor& tensor : boundary.tensors) {
      const model::ValueRef value{index.at(tensor.layer), *tensor.output, -1};
      if (boundary.destination == resident.stage) {
        slots.push_back(to_int(out.received.size()));
        out.received.push_back({value, tensor.gradient});
      } else if (boundary.source == resident.stage) {
        const auto [it, fresh] = sent_slot.emplace(std::pair(value.layer, value.output), to_int(out.sent.size()));
        if (fresh) out.sent.push_back(value);
        slots.push_back(it->second);
      }
    }
  }
  return out;
}

}  // namespace

ResidentStage make_resident_stage(const BoundModel& bound, int stage, int microbatches,
                                  const stage::OptimizerOptions& optimizer, std::uint64_t seed,
                                  stage::Placement placement) {
  ResidentStage out;
  out.stage = stage;
  out.incoming = bound.plan.incoming(stage);
  out.outgoing = bound.plan.outgoing(stage);
  out.replica_ranks = bound.plan.ranks_of(stage);
  CrossingValues values = find_crossing_values(bound.model, bound.plan, out);
  const auto number = to_index(stage);
  out.program = std::make_unique<stage::StageProgram>(bound.model, bound.layers[number], std::move(values.received),
                                                      std::move(values.sent), seed, placement);
  const Stage& planned = bound.plan.plan().stages[number];
  if (!bound.plan.schedule().trains) out.program->evaluate();
  if (planned.recompute) out.program->recompute_every(planned.recompute_every);
  std::vector<at::Tensor> parameters;
  for (const stage::Parameter& parameter : out.program->parameters()) parameters.push_back(parameter.value);
  out.optimizer = std::make_unique<stage::Optimizer>(optimizer, std::move(parameters));
  const auto count = to_index(microbatches);
  out.flights.resize(count);
  out.input_gradients.resize(count);
  out.rests.resize(count);
  return out;
}

}  // namespace stagecraft::run
