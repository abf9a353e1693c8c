#include "partitioner/search/alternatives.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/prediction/stage_costs.h"
#include "costmodel/schedule.h"
#include "costmodel/text/units_text.h"
#include "partitioner/candidate.h"
#include "partitioner/equal_drafts.h"
#include "partitioner/remedies.h"
#include "partitioner/search/optimal.h"
#include "partitioner/search/search_time.h"

namespace stagecraft::partitioner {
namespace {

/// Estimates may be that much too long.
constexpr double kEstimated = 1.15;

/// A request with another setting.
struct Change {
  std::string text;
  Graph graph;
  Constraints constraints;
  double samples = 1;
};

/// The graph of microbatches with half the samples, each of which takes as long as before.
Graph halved(const Graph& graph) {
  Graph out = with_samples(graph, *graph.microbatch_samples / 2);
  const double closure = closure_factor(graph);
  const auto scale = [](Timing& timing, double factor) { timing.median = timing.median * factor; };
  for (Layer& layer : out.layers) {
    scale(layer.forward, closure / 2);
    scale(layer.backward, closure / 2);
    if (layer.backward_parts) {
      scale(layer.backward_parts->inputs, closure / 2);
      scale(layer.backward_parts->weights, closure / 2);
    }
    if (layer.update) scale(*layer.update, closure);
  }
  out.iteration.reset();
  return out;
}

std::vector<Change> changes_of(const Graph& graph, const Topology& topology, const Constraints& constraints,
                               bool more_microbatches) {
  std::vector<Change> out;
  const auto add = [&](std::string text) -> Change& {
    return out.emplace_back(Change{std::move(text), graph, constraints, 1});
  };
  const PlanSettings& asked = constraints.plan;
  const ScheduleEntry& schedule = schedule_by_name(asked.schedule);
  if (schedule.trains && !asked.recompute && memory_limit(topology, constraints)) {
    const auto recompute = [&](const std::string& text, int every) {
      Change& change = add(text);
      change.constraints.plan.recompute = true;
      change.constraints.plan.recompute_every = every;
    };
    recompute("--recompute", 0);
    for (int every = 1; every < to_int(graph.layers.size()); every *= 2)
      recompute("--recompute-every " + std::to_string(every), every);
  }
  if (schedule.trains && schedule.weights == Weights::Flushed) {
    for (const ScheduleEntry& other : schedules()) {
      const bool is_like = other.trains && other.weights == Weights::Flushed && !other.needs_lists;
      if (!is_like || other.name == asked.schedule || (constraints.chunks.value_or(1) > 1 && !other.chunked)) continue;
      add("--schedule " + other.name).constraints.plan.schedule = other.name;
    }
  }
  if (graph.microbatch_samples.value_or(0) % 2 == 0 && graph.microbatch_samples.value_or(0) > 0 &&
      asked.microbatches <= kMostMicrobatches / 2) {
    Change& change = add("microbatches of " + count_text(*graph.microbatch_samples / 2, "sample"));
    change.graph = halved(graph);
    change.constraints.plan.microbatches *= 2;
    change.samples = 0.5;
  }
  for (const int times : {2, 4}) {
    if (!more_microbatches || asked.microbatches > kMostMicrobatches / times) break;
    const int microbatches = asked.microbatches * times;
    add("--microbatches " + std::to_string(microbatches)).constraints.plan.microbatches = microbatches;
  }
  return out;
}

}  // namespace

std::vector<Alternative> alternatives(const Graph& graph, const Topology& topology, const CostModel& costs,
                                      const Constraints& constraints, const AlternativeSearch& wanted) {
  std::vector<Alternative> out;
  if (!constraints.plan.listed.empty() || schedule_by_name(constraints.plan.schedule).weights != Weights::Flushed)
    return out;
  SearchTime time(wanted.time);
  time.allow_some(1);
  std::vector<std::pair<Seconds, Change>> order;
  const auto amount = [&](const Change& change) {  // of samples, relative to the request
    return change.samples * change.constraints.plan.microbatches / constraints.plan.microbatches;
  };
  for (Change& change : changes_of(graph, topology, constraints, wanted.more_microbatches)) {
    if (time.is_up()) break;
    const Seconds most = wanted.shorter_than * amount(change);
    if (least_step(change.graph, topology, change.constraints.plan) >= most) continue;
    const std::optional<Seconds> step = estimated_step(change.graph, topology, change.constraints);
    if (step && *step < most * kEstimated) order.emplace_back(*step * (1 / amount(change)), std::move(change));
  }
  std::ranges::stable_sort(order, {}, [](const auto& entry) { return entry.first; });
  for (const auto& [step, change] : order) {
    if (time.is_up()) break;
    try {
      const Seconds most = wanted.shorter_than * amount(change);
      ShorterPlan found = drafted_plan(change.graph, topology, costs, change.constraints, most);
      if (!found.plan) continue;
      const Prediction& prediction = found.plan->prediction;
      out.push_back({change.text, prediction.iteration, change.constraints.plan.microbatches, change.samples,
                     prediction.unused_devices.size()});
    } catch (const std::invalid_argument&) {}  // not with these stages and chunks
  }
  std::ranges::stable_sort(out, {}, [](const Alternative& a) { return a.step * (1 / (a.samples * a.microbatches)); });
  return out;
}

}  // namespace stagecraft::partitioner
