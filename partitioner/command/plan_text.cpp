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
#include "costmodel/text/replicas_text.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"
#include "partitioner/candidate.h"
#include "partitioner/strategies/auto.h"
#include "partitioner/strategies/optimal.h"

namespace stagecraft::partitioner {
namespace {

/// Rows of a ranking.
constexpr std::size_t kShown = 12;

/// Plans of the same shape: stages of as many replicas, in order or placed. Only cuts differ.
struct PlansOfShape {
  const RankedPlan* best = nullptr;
  bool in_order = true;
  int count = 0;
};

bool is_in_order(const Plan& plan) {
  int next = 0;
  for (std::size_t s = 0; s < plan.stages.size() / to_index(plan.chunks); ++s) {
    for (const int device : plan.stages[s].devices) {
      if (device != next++) return false;
    }
  }
  return true;
}

/// A row of the ranking: a shape, and others that follow it and are as fast, within kTie.
struct RankingRow {
  PlansOfShape first;
  std::vector<PlansOfShape> ties;
};

std::vector<RankingRow> with_ties(const std::vector<PlansOfShape>& shapes) {
  std::vector<RankingRow> out;
  for (const PlansOfShape& shape : shapes) {
    const bool is_tie = !out.empty() && shape.best->fits && out.back().first.best->fits &&
                        shape.best->prediction.iteration <= out.back().first.best->prediction.iteration * (1 + kTie);
    if (is_tie) {
      out.back().ties.push_back(shape);
    } else {
      out.push_back({shape, {}});
    }
  }
  return out;
}

/// "2-1", "2-1 in 2 chunks": the shape without where it is placed.
std::string shape_text(const Plan& plan) {
  return replicas_text(replicas_of(plan), kReplicasWidth) +
         (plan.chunks > 1 ? fmt::format(" in {} chunks", plan.chunks) : "");
}

/// "best of 3; 2-2 and 1-3 within 1 %".
std::string others_text(const RankingRow& row) {
  constexpr std::size_t kNamed = 3;
  std::string out = row.first.count > 1 ? fmt::format("best of {}", row.first.count) : "";
  if (row.ties.empty()) return out;
  std::vector<std::string> names;
  for (const PlansOfShape& tie : std::span(row.ties).first(std::min(row.ties.size(), kNamed)))
    names.push_back(shape_text(tie.best->plan) + (tie.in_order ? "" : " placed"));
  if (row.ties.size() > kNamed) names.push_back(fmt::format("{} more", row.ties.size() - kNamed));
  return out + (out.empty() ? "" : "; ") + fmt::format("{} within {:g} %", fmt::join(names, ", "), kTie * 100);
}

/// In the order of the best of each.
std::vector<PlansOfShape> by_shape(const std::vector<RankedPlan>& plans) {
  std::vector<PlansOfShape> out;
  std::map<std::tuple<std::vector<int>, int, bool, bool>, std::size_t> places;
  for (const RankedPlan& r : plans) {
    const bool in_order = is_in_order(r.plan);
    const auto [place, is_new] = places.try_emplace({replicas_of(r.plan), r.plan.chunks, in_order, r.fits}, out.size());
    if (is_new) out.push_back({&r, in_order, 0});
    ++out[place->second].count;
  }
  return out;
}

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
  if (plan.iteration && prediction.samples_per_s) out += ", " + throughput_text(prediction, mark);
  if (plan.iteration && plan.lower_bound)
    out += fmt::format(": {} on these devices", gap_text(*plan.iteration, *plan.lower_bound));
  out += "\n";
  if (plan.iteration) out += bubble_text(prediction, mark) + "\n" + rates_lines(prediction, mark);
  if (!mark.empty()) out += "~ marks figures that were not measured on this topology's devices: " + other_device + "\n";
  return out;
}

std::string ranking_text(const Ranking& ranking, const std::string& mark, const Screen& screen) {
  const std::vector<RankedPlan>& plans = ranking.plans;
  std::vector<std::vector<std::string>> rows;
  const std::vector<RankingRow> shapes = with_ties(by_shape(plans));
  for (const RankingRow& row : std::span(shapes).first(std::min(shapes.size(), kShown))) {
    const PlansOfShape& shape = row.first;
    const RankedPlan& r = *shape.best;
    Bytes peak;
    for (const auto& memory : r.prediction.timeline.memory) peak = std::max(peak, memory.total);
    const bool says_placed = shape.in_order || r.origin.ends_with(", placed");
    const std::string chunks = r.plan.chunks > 1 ? fmt::format(", {} chunks", r.plan.chunks) : "";
    rows.push_back({r.origin + chunks + (says_placed ? "" : ", placed"),
                    replicas_text(replicas_of(r.plan), kReplicasWidth), mark + format_seconds(r.prediction.iteration),
                    fmt::format("{}{:.1f} %", mark, r.prediction.bubble * 100), mark + format_bytes(peak),
                    r.fits ? others_text(row) : "does not fit"});
  }
  std::string out = table_text({{.title = "plan", .left = true, .can_be_cut = true},
                                {.title = "replicas"},
                                {.title = "step"},
                                {.title = "idle"},
                                {.title = "peak memory"},
                                {.title = "", .left = true}},
                               rows, screen, plans.front().fits ? std::optional<std::size_t>(0) : std::nullopt);
  if (shapes.size() > kShown) out += fmt::format("and {} more\n", shapes.size() - kShown);
  if (ranking.slower > 0) {
    out += fmt::format("{} more skipped: {} compute time alone exceeds the best step\n", ranking.slower,
                       ranking.slower == 1 ? "its" : "their");
  }
  const auto ties = std::ranges::count_if(plans, [&](const RankedPlan& r) {
    return r.fits && r.prediction.iteration <= plans.front().prediction.iteration * (1 + kTie);
  });
  if (ties > 1 && !ranking.lower_bound) {
    out += fmt::format("steps within {:g} % are ties: fewer devices, then fewer stages win\n", kTie * 100);
  }
  if (!ranking.cut_off.empty()) {
    out += fmt::format("the time limit cut off: {}; a longer --time-limit may give a better plan or a smaller gap\n",
                       fmt::join(ranking.cut_off, ", "));
  }
  if (const std::string text = skipped_text(ranking.skipped); !text.empty()) out += text + "\n";
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
