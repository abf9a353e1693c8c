#include "partitioner/cost_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/prediction/memory_replay.h"
#include "costmodel/prediction/stage_costs.h"

namespace stagecraft::partitioner {
namespace {

PlanMemory memory_of(const Graph& graph, const Topology& topology, const BoundPlan& bound) {
  const auto lists = bound.action_lists(bound.step_window().steps, PredictOptions{}.prefetch);
  const std::vector<MemoryReplay> replays = replay_memory(graph, topology, bound, lists);
  PlanMemory out;
  out.stages.resize(to_index(bound.stages()));
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

/// The least that the layer's forward and backward take under the schedule, in a stage with `replicas`, as a mean over
/// the step.
Seconds least_time(const Layer& layer, const BoundPlan& plan, int replicas) {
  const ScheduleEntry& schedule = plan.schedule();
  // Lists by hand may leave a backward out.
  if (!plan.plan().listed.empty() || !schedule.trains) return layer.forward.median;
  Seconds backward = layer.backward.median;
  if (schedule.splits_backward) {
    const BackwardParts parts = backward_parts(layer);
    backward = std::min(backward, parts.inputs.median + parts.weights.median);
  }
  const Seconds spared = accumulation_time(layer) * creating_share(schedule, plan.plan().microbatches, replicas);
  return layer.forward.median + std::max(Seconds(0), backward - spared);
}

/// The compute of the busiest rank.
Seconds busiest_rank(const Graph& graph, const BoundPlan& plan) {
  const int microbatches = plan.plan().microbatches;
  const double closure = closure_factor(graph);
  const auto layers = layers_of_stages(graph, plan.plan());
  Seconds out;
  for (int position = 0; position < plan.positions(); ++position) {
    Seconds time;
    const int replicas = plan.replicas(position);
    for (const int s : plan.stages_at(position)) {
      for (const Layer* layer : layers[to_index(s)]) time += least_time(*layer, plan, replicas) * closure;
    }
    const double most =
        plan.asynchronous() ? static_cast<double>(microbatches) / replicas : (microbatches + replicas - 1) / replicas;
    out = std::max(out, time * most);
  }
  return out;
}

}  // namespace

CostModel simulated_costs(std::function<void(double done)> progress) {
  const auto predicted = [progress = std::move(progress)](const Graph& graph, const Topology& topology,
                                                          const BoundPlan& plan) {
    return predict(graph, topology, plan, {.progress = progress});
  };
  return {predicted, memory_of, busiest_rank};
}

CostModel simulated_costs(SearchProgress& progress) {
  CostModel out = simulated_costs([&progress](double done) { progress.simulated(done); });
  out.predict = [&progress, predict = std::move(out.predict)](const Graph& graph, const Topology& topology,
                                                              const BoundPlan& plan) {
    auto result = predict(graph, topology, plan);
    progress.predicted();
    return result;
  };
  out.progress = &progress;
  return out;
}

}  // namespace stagecraft::partitioner
