#include "partitioner/cost_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/prediction/memory_replay.h"

namespace stagecraft::partitioner {
namespace {

PlanMemory memory_of(const Graph& graph, const Topology& topology, const Plan& plan) {
  const BoundPlan bound(plan);
  const auto lists = bound.action_lists(bound.step_window().steps, PredictOptions{}.prefetch);
  const std::vector<MemoryReplay> replays = replay_memory(graph, topology, bound, lists);
  PlanMemory out;
  out.stages.resize(plan.stages.size());
  for (int position = 0; position < bound.positions(); ++position) {
    int fullest = bound.first_rank(position);
    for (const int rank : bound.ranks_of(position)) {
      if (replays[to_index(rank)].bound > replays[to_index(fullest)].bound) fullest = rank;
    }
    const MemoryReplay& replay = replays[to_index(fullest)];
    const std::vector<int>& stages = bound.ranks()[to_index(fullest)].stages;
    for (std::size_t i = 0; i < stages.size(); ++i)
      out.stages[to_index(stages[i])] = {replay.stages[i], replay.bounds[i]};
    out.peak = std::max(out.peak, replay.bound);
  }
  return out;
}

}  // namespace

CostModel simulated_costs(std::function<void(double done)> progress) {
  const auto predicted = [progress = std::move(progress)](const Graph& graph, const Topology& topology,
                                                          const Plan& plan) {
    return predict(graph, topology, BoundPlan(plan), {.progress = progress});
  };
  return {predicted, memory_of};
}

CostModel simulated_costs(SearchProgress& progress) {
  CostModel out = simulated_costs([&progress](double done) { progress.simulated(done); });
  out.predict = [&progress, predict = std::move(out.predict)](const Graph& graph, const Topology& topology,
                                                              const Plan& plan) {
    auto result = predict(graph, topology, plan);
    progress.predicted();
    return result;
  };
  out.progress = &progress;
  return out;
}

}  // namespace stagecraft::partitioner
