#include "partitioner/cost_model.h"

#include <algorithm>
#include <utility>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/memory.h"

namespace stagecraft::partitioner {
namespace {

Bytes peak_memory(const Graph& graph, const Plan& plan) {
  const BoundPlan bound(plan);
  const auto lists = bound.action_lists(bound.step_window().steps, PredictOptions{}.prefetch);
  std::vector<Bytes> needs(to_index(bound.positions()));
  for (int s = 0; s < bound.stages(); ++s) {
    const int microbatches = in_flight(lists[to_index(bound.first_rank(s))], s);
    needs[to_index(s % bound.positions())] += stage_memory(graph, bound, s, microbatches).total;
  }
  return *std::ranges::max_element(needs);
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
