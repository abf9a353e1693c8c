#include "partitioner/cost_model.h"

#include <algorithm>
#include <utility>

#include "costmodel/memory.h"

namespace stagecraft::partitioner {
namespace {

Bytes peak_memory(const Graph& graph, const Plan& plan) {
  const auto lists = action_lists(plan, PredictOptions{}.prefetch, tied_stages(graph, plan), step_window(plan).steps);
  Bytes most;
  for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
    const int microbatches = in_flight(lists[static_cast<std::size_t>(rank_of(plan, s, 0))], s);
    most = std::max(most, stage_memory(graph, plan, s, microbatches).total);
  }
  return most;
}

}  // namespace

CostModel simulated_costs(std::function<void(double done)> progress) {
  const auto predicted = [progress = std::move(progress)](const Graph& graph, const Topology& topology,
                                                          const Plan& plan) {
    return predict(graph, topology, plan, {.progress = progress});
  };
  return {predicted, peak_memory};
}

}  // namespace stagecraft::partitioner
