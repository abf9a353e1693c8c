#include "partitioner/command/plan_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"
#include "partitioner/candidate.h"
#include "partitioner/choices/listing.h"
#include "partitioner/strategies/auto.h"

namespace stagecraft::partitioner {
namespace {

/// "4 microbatches of 16 samples, 64 samples per step; 1f1b".
std::string batch_text(const Graph& graph, const Plan& plan) {
  std::string out = count_text(plan.microbatches, "microbatch", "microbatches");
  if (graph.microbatch_samples) {
    const std::int64_t samples = *graph.microbatch_samples;
    out += fmt::format(" of {}, {} per step", count_text(samples, "sample"),
                       count_text(samples * plan.microbatches, "sample"));
  } else {
    out += " per step";
  }
  return out + "; " + plan.schedule;
}

}  // namespace

std::string idle_reason_text(const Graph& graph, const RankedPlan& ranked) {
  const Plan& plan = ranked.plan;
  const auto most = std::ranges::max(replicas_of(plan));
  if (ranked.prediction.unused_devices.empty() || most < plan.microbatches) return "";
  return fmt::format("; with {}, at most {} of a stage {} work{}",
                     count_text(plan.microbatches, "microbatch", "microbatches"),
                     count_text(plan.microbatches, "replica"), plan.microbatches == 1 ? "has" : "have",
                     graph.whole_batch_loss ? ", and the loss allows no more" : ": try more --microbatches");
}

std::string stages_text(const Graph& graph, const RankedPlan& ranked, const std::string& other_device,
                        const Screen& screen) {
  const Plan& plan = ranked.plan;
  const Prediction& prediction = ranked.prediction;
  const std::string mark = other_device.empty() ? "" : "~";
  const std::vector<std::vector<const Layer*>> layers = layers_of_stages(graph, plan);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    Seconds time;
    const Bytes parameters = held_parameter_bytes(layers[s]);
    for (const Layer* layer : layers[s]) time += layer->forward.median + layer->backward.median;
    rows.push_back({std::to_string(s), std::to_string(stage.devices.size()), format_ranges(stage.devices),
                    std::to_string(stage.layers.size()), mark + format_seconds(time), mark + format_bytes(parameters),
                    stage.layers.front() + " .. " + stage.layers.back()});
  }
  std::string out = table_text({{.title = "stage"},
                                {.title = "replicas"},
                                {.title = "devices", .can_be_cut = true},
                                {.title = "layers"},
                                {.title = "fwd + bwd"},
                                {.title = "parameters"},
                                {.title = "first .. last", .left = true, .can_be_cut = true}},
                               rows, screen);
  out += batch_text(graph, plan) + "\n";
  // A strategy without the end of a step in its model does not see that replicas beyond the microbatches are idle.
  const bool endless = ranked.endless && !prediction.idle_devices.empty();
  if (plan.steady_state) {
    out += fmt::format("slowest {} {}{} per microbatch{}", plan.chunks > 1 ? "device" : "stage", mark,
                       format_seconds(*plan.steady_state), endless ? " in steady state" : "");
  }
  if (plan.iteration) out += fmt::format("; predicted step {}{}", mark, format_seconds(*plan.iteration));
  if (plan.run_iteration) out += fmt::format(" ({}{} in a run)", mark, format_seconds(*plan.run_iteration));
  if (plan.iteration && prediction.samples_per_s) out += ", " + throughput_text(prediction, mark);
  if (plan.iteration && plan.lower_bound) {
    const bool is_bound_of_others = !is_in_order(plan) && *plan.lower_bound >= *plan.iteration;
    out += is_bound_of_others ? ": no plan on devices in order is shorter"
                              : fmt::format(": {} on these devices", gap_text(*plan.iteration, *plan.lower_bound));
  }
  out += "\n";
  if (plan.iteration) out += bubble_text(prediction, mark) + "\n" + rates_lines(prediction, mark);
  if (!mark.empty()) out += "~ marks figures that were not measured on this topology's devices: " + other_device + "\n";
  return out;
}

std::string progress_text(const SearchState& state) {
  if (state.search.empty()) return "";
  std::string out = state.part + (state.part.empty() ? "" : ": ") + state.search + ": ";
  out += time_text(state.passed, state.limit);
  if (state.all > 0) {
    out += fmt::format(", {} of {}", state.done, state.all);
    if (!state.limit && state.done > 0) {
      const double rest = static_cast<double>(state.all - state.done) / static_cast<double>(state.done);
      out += fmt::format(", {} left", duration_text(state.passed * rest));
    }
  }
  if (state.best) {
    out += ", best step " + format_seconds(*state.best);
    if (state.lower_bound && *state.lower_bound > Seconds(0))
      out += fmt::format(", gap at most {} %", gap_percent(*state.best, *state.lower_bound));
  }
  if (state.simulated > 0) out += fmt::format(", simulating a plan: {:.0f} %", state.simulated * 100);
  if (state.predicted > 0) out += fmt::format(", {} plans predicted", state.predicted);
  return out;
}

}  // namespace stagecraft::partitioner
