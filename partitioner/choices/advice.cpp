#include "partitioner/choices/advice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/prediction/stage_costs.h"
#include "costmodel/schedule.h"
#include "costmodel/text/units_text.h"
#include "partitioner/bounds/least_step.h"
#include "partitioner/candidate.h"
#include "partitioner/choices/settings.h"
#include "partitioner/remedies.h"
#include "partitioner/search/search_time.h"
#include "partitioner/strategies/equal_drafts.h"
#include "partitioner/strategies/optimal.h"

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

/// The samples of a step, in microbatches of the request.
double microbatches_of_request(const Alternative& found) { return found.samples * found.plan.plan.microbatches; }

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
    if (may_shard(graph, asked)) add("--shard optimizer").constraints.plan.sharding = StateSharding::Optimizer;
    for (const int every : recomputation_steps(to_int(graph.layers.size())))
      recompute(every == 0 ? "--recompute" : "--recompute-every " + std::to_string(every), every);
  }
  if (schedule.trains && schedule.weights == Weights::Flushed) {
    for (const std::string& other : schedules_to_compare()) {
      const ScheduleEntry& entry = schedule_by_name(other);
      const bool can_run = runs_chunks(entry, constraints.chunks.value_or(least_chunks(entry)));
      if (other != asked.schedule && can_run) add("--schedule " + other).constraints.plan.schedule = other;
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

/// A plan is worth a word if it is that much faster; and idle devices, if there are as many.
constexpr double kFaster = 0.9;
constexpr double kIdle = 0.1;
constexpr std::size_t kMostNamed = 3;

bool has_many_idle(std::size_t unused, int devices) { return static_cast<double>(unused) > kIdle * devices; }

/// The fastest of the ranking's plans that leave few devices idle.
const RankedPlan* busiest_plan(const Ranking& ranking) {
  const auto found = std::ranges::find_if(ranking.plans, [](const RankedPlan& ranked) {
    return ranked.fits && !has_many_idle(ranked.prediction.unused_devices.size(), ranked.prediction.devices);
  });
  return found == ranking.plans.end() ? nullptr : &*found;
}

std::string alternative_text(const Alternative& found, const Graph& graph, int microbatches, const std::string& mark) {
  const Seconds step = found.plan.prediction.iteration;
  std::string out = fmt::format("{}: {}{}", found.change, mark, format_seconds(step));
  const double samples = microbatches_of_request(found);
  if (samples == microbatches) return found.samples == 1 ? out : out + " if a sample takes as long as in this profile";
  if (!graph.microbatch_samples) return out + fmt::format(" for {} microbatches", found.plan.plan.microbatches);
  const double all = samples * static_cast<double>(*graph.microbatch_samples);
  return out + fmt::format(" for {:.0f} samples, {}{:.1f} samples per second", all, mark, all / step.value);
}

std::string texts(const std::vector<Alternative>& found, const Graph& graph, int microbatches,
                  const std::string& mark) {
  std::vector<std::string> out;
  for (const Alternative& one : found) {
    if (out.size() < kMostNamed) out.push_back(alternative_text(one, graph, microbatches, mark));
  }
  return fmt::format("{}", fmt::join(out, "; "));
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
      ShorterPlan found = drafted_plan(change.graph, topology, costs, change.constraints, most, time.stop());
      if (!found.plan) continue;
      out.push_back({change.text, change.samples, std::move(*found.plan)});
    } catch (const std::invalid_argument&) {}  // not with these stages and chunks
  }
  std::ranges::stable_sort(
      out, {}, [](const Alternative& a) { return a.plan.prediction.iteration * (1 / microbatches_of_request(a)); });
  return out;
}

std::vector<std::string> advice(const Graph& graph, const Topology& topology, const CostModel& costs,
                                const Constraints& constraints, const Ranking& ranking, Seconds time,
                                const std::string& mark) {
  const RankedPlan& first = ranking.plans.front();
  if (!first.fits) return {};
  const Prediction& prediction = first.prediction;
  const int microbatches = constraints.plan.microbatches;
  const bool is_idle = has_many_idle(prediction.unused_devices.size(), prediction.devices);
  const std::vector<Alternative> found =
      alternatives(graph, topology, costs, constraints, {prediction.iteration * kFaster, is_idle, time});
  std::vector<Alternative> faster;
  std::vector<Alternative> busier;
  for (const Alternative& one : found) {
    const bool is_same_batch = microbatches_of_request(one) == microbatches;
    if (is_same_batch) faster.push_back(one);
    if (is_idle && !has_many_idle(one.plan.prediction.unused_devices.size(), prediction.devices)) busier.push_back(one);
  }
  std::vector<std::string> out;
  if (is_idle) {
    const RankedPlan* busiest = busiest_plan(ranking);
    out.push_back(busiest != nullptr
                      ? fmt::format("the best plan found that uses at least nine tenths of the devices is slower: {}{}",
                                    mark, format_seconds(busiest->prediction.iteration))
                      : "no plan was found that uses nine tenths of the devices with these settings");
    if (!busier.empty()) out.push_back("plans that use them: " + texts(busier, graph, microbatches, mark));
  }
  if (!faster.empty()) out.push_back("faster with other settings: " + texts(faster, graph, microbatches, mark));
  return out;
}

}  // namespace stagecraft::partitioner
