#include "partitioner/cost_model.h"

#include <algorithm>
#include <utility>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/prediction/memory_replay.h"

namespace stagecraft::partitioner {
namespace {

Bytes peak_memory(const Graph& graph, const Plan& plan) {
  const BoundPlan bound(plan);
  const auto lists = bound.action_lists(bound.step_window().steps, PredictOptions{}.prefetch);
  Bytes most;
  for (const MemoryReplay& replay : replay_memory(graph, bound, lists)) most = std::max(most, replay.bound);
  return most;
}

}  // namespace

CostModel simulated_costs(std::function<void(double done)> progress) {
  const auto predicted = [progress = std::move(progress)](const Graph& graph, const Topology& topology,
                                                          const Plan& plan) {
    return predict(graph, topology, BoundPlan(plan), {.progress = progress});
  };
  return {predicted, peak_memory};
}

}  // namespace stagecraft::partitioner
