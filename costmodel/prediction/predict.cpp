#include "costmodel/prediction/predict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/prediction/cards.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/prediction/memory_replay.h"
#include "costmodel/prediction/stage_costs.h"
#include "costmodel/prediction/transfer_costs.h"
#include "costmodel/schedule.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"

namespace stagecraft {
namespace {

/// A lower share of the peak is called low: large models usually reach 0.44 to 0.52, see low_share_text.
constexpr double kLowShare = 0.25;

/// The number of integers that each sample has in `output`; 0 if that is not a sequence of integers.
std::int64_t sequence_of(const Output& output, std::int64_t samples) {
  if (output.shape.size() != 2 || (output.dtype != "int64" && output.dtype != "int32")) return 0;
  if (output.shape[0] == samples) return output.shape[1];
  return output.shape[1] == samples ? output.shape[0] : 0;  // time first
}

std::optional<std::int64_t> tokens_of(const Graph& graph) {
  std::vector<bool> is_read(graph.layers.size(), false);
  for (const Edge& edge : graph.edges) is_read[to_index(edge.source)] = true;
  std::int64_t out = 0;
  for (const Edge& edge : graph.edges) {
    const Layer& input = graph.layers[to_index(edge.source)];
    // The last layer reads labels, as the loss does.
    if (!is_input(input) || !is_read[to_index(edge.destination)]) continue;
    for (const Output& output : input.outputs) out = std::max(out, sequence_of(output, *graph.microbatch_samples));
  }
  return out > 1 ? std::optional(out) : std::nullopt;
}

std::optional<Flops> flops_of(const Graph& graph, bool trains) {
  Flops out;
  for (const Layer& layer : graph.layers) {
    if (is_input(layer)) continue;
    const bool has_backward = trains && layer.backward.median > Seconds(0);
    if (!layer.forward_work || (has_backward && !layer.backward_work)) return std::nullopt;
    out += layer.forward_work->flops;
    if (trains && layer.backward_work) out += layer.backward_work->flops;
  }
  if (out == Flops(0)) return std::nullopt;
  return Flops(out.value / static_cast<double>(*graph.microbatch_samples));
}

/// Of one device of type `type`.
std::optional<Peak> peak_on(const Graph& graph, const std::string& type) {
  const auto profile = std::ranges::find(graph.profiles, type, &DeviceProfile::type);
  const bool is_main = profile == graph.profiles.end();
  const std::string name = is_main ? measured_device(graph).name : profile->device.name;
  if (is_main && graph.estimate) return Peak{graph.estimate->peak, name + " (" + graph.estimate->math + ")"};
  return known_peak(name.empty() ? type : name, graph.dtype, graph.allow_tf32.value_or(false));
}

}  // namespace

SampleWork sample_work(const Graph& graph, const Topology& topology, const Plan& plan) {
  SampleWork out;
  if (!graph.microbatch_samples) return out;
  out.tokens = tokens_of(graph);
  out.flops = flops_of(graph, schedule_of(plan).trains);
  if (!out.flops) return out;
  std::map<std::string, int> devices;  // by type
  std::set<int> counted;
  for (const Stage& stage : plan.stages) {
    for (const int device : stage.devices) {
      if (counted.insert(device).second) ++devices[device_at(topology, device).name];
    }
  }
  FlopsPerSecond sum;
  std::set<std::string> names;
  for (const auto& [type, count] : devices) {
    const auto peak = peak_on(graph, type);
    if (!peak) return out;
    sum += FlopsPerSecond(peak->rate.value * count);
    names.insert(peak->of);
  }
  out.peak = sum;
  out.peak_of = fmt::format("{}", fmt::join(names, " and "));
  return out;
}

WorkRates work_rates(const SampleWork& work, double samples_per_s) {
  WorkRates out;
  if (work.tokens) out.tokens_per_s = static_cast<double>(*work.tokens) * samples_per_s;
  if (work.flops) out.flops_per_s = FlopsPerSecond(work.flops->value * samples_per_s);
  if (out.flops_per_s && work.peak) {
    out.peak_share = *out.flops_per_s / *work.peak;
    out.peak_of = work.peak_of;
  }
  return out;
}

WorkRates scaled(WorkRates rates, double factor) {
  if (rates.tokens_per_s) *rates.tokens_per_s *= factor;
  if (rates.flops_per_s) rates.flops_per_s->value *= factor;
  if (rates.peak_share) *rates.peak_share *= factor;
  return rates;
}

std::string work_rates_text(const WorkRates& rates, int devices, const std::string& mark) {
  std::vector<std::string> parts;
  if (rates.tokens_per_s) {
    const double tokens = *rates.tokens_per_s;
    parts.push_back(fmt::format("{}{:.{}f} tokens per second", mark, tokens, tokens < 100 ? 1 : 0));
  }
  if (rates.flops_per_s) {
    const FlopsPerSecond each(rates.flops_per_s->value / std::max(devices, 1));
    parts.push_back(mark + format_rate(each) + (devices > 1 ? " per device" : ""));
  }
  if (rates.peak_share)
    parts.push_back(fmt::format("{}{:.1f} % of the peak of {}", mark, *rates.peak_share * 100, rates.peak_of));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string low_share_text(const WorkRates& rates, double idle) {
  if (!rates.peak_share || *rates.peak_share >= kLowShare) return "";
  return fmt::format("{:.1f} % of the peak is low (large transformers reach 40 to 50 %): {}", *rates.peak_share * 100,
                     idle > 0.5 ? fmt::format("the devices are idle for {:.0f} % of the step", idle * 100)
                                : "the layers themselves are slow; fused kernels or larger microbatches may help");
}

namespace {

const std::vector<std::pair<FigureSource, const char*>>& source_names() {
  static const std::vector<std::pair<FigureSource, const char*>> names{
      {FigureSource::Measured, "measured"}, {FigureSource::Fitted, "fitted"},
      {FigureSource::Analytic, "analytic"}, {FigureSource::Extrapolated, "extrapolated"},
      {FigureSource::Assumed, "assumed"},   {FigureSource::Calibrated, "calibrated"}};
  return names;
}

/// Times and memory of each stage.
std::vector<StagePrediction> predicted_stages(const Graph& graph, const BoundPlan& plan, const StepReplay& replayed,
                                              Seconds iteration) {
  std::vector<StagePrediction> out;
  const std::vector<bool> splits = splits_backward(graph, plan);
  const int steps = replayed.steps;
  const double microbatches = static_cast<double>(plan.plan().microbatches) * steps;
  for (int s = 0; s < plan.stages(); ++s) {
    const StageShares& shares = replayed.shares[to_index(s)];
    StagePrediction stage;
    stage.stage = s;
    stage.replicas = plan.replicas(s);
    const double parts = stage.replicas * steps;
    stage.compute = (shares.forward + shares.backward) / parts;
    stage.forward = shares.forward / microbatches;
    stage.backward = shares.backward / microbatches;
    stage.update = shares.update / parts;
    stage.reduce = shares.reduce / parts;
    stage.exposed_transfer = shares.exposed_transfer / parts;
    const int rank = plan.first_rank(s);
    stage.in_flight = in_flight(replayed.input.lists[to_index(rank)], s, splits[to_index(s)]);
    out.push_back(std::move(stage));
  }
  // Chunks of one rank share its idle time, which is reported for the first of them, and its memory.
  for (int first = 0; first < plan.positions(); ++first) {
    Seconds used;
    for (const int s : plan.stages_at(first)) {
      const StagePrediction& chunk = out[to_index(s)];
      used += chunk.compute + chunk.update + chunk.reduce + chunk.exposed_transfer;
    }
    out[to_index(first)].bubble = std::max(iteration - used, Seconds(0));
  }
  return out;
}

/// The computations of each rank.
std::vector<std::vector<const Span*>> work_of_ranks(const Timeline& timeline) {
  std::vector<std::vector<const Span*>> out(to_index(timeline.ranks));
  for (const Span& span : timeline.spans) {
    if (!is_transfer(span.action.kind)) out[to_index(span.rank)].push_back(&span);
  }
  return out;
}

/// Which actions are alike: of equal keys, the nth in a rank's list is the nth on its timeline.
std::tuple<int, int, ActionKind> key_of(const Action& action) { return {action.microbatch, action.stage, action.kind}; }

/// The span of each action of a rank's list, null for those that are no computations. `work` are the rank's
/// computations.
std::vector<const Span*> spans_of(const std::vector<Action>& list, std::vector<const Span*> work) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!is_transfer(list[i].kind)) places.push_back(i);
  }
  const auto key_at = [&](std::size_t place) { return key_of(list[place]); };
  const auto key_of_span = [](const Span* span) { return key_of(span->action); };
  std::vector<const Span*> out(list.size(), nullptr);
  // As on most timelines, whose ranks compute in the order of their lists.
  if (std::ranges::equal(places, work, {}, key_at, key_of_span)) {
    for (std::size_t i = 0; i < places.size(); ++i) out[places[i]] = work[i];
    return out;
  }
  std::ranges::stable_sort(places, {}, key_at);
  std::ranges::stable_sort(work, {}, key_of_span);
  auto span = work.begin();
  for (const std::size_t i : places) {
    const auto key = key_at(i);
    while (span != work.end() && key_of_span(*span) < key) ++span;
    if (span != work.end() && key_of_span(*span) == key) out[i] = *span++;
  }
  return out;
}

/// What a rank holds as it begins and ends each of its computations, which are `work`.
MemoryOverTime memory_over_time_of(const MemoryReplay& replay, const std::vector<Action>& list,
                                   std::vector<const Span*> work) {
  MemoryOverTime out{replay.peak.rank, {}};
  const std::vector<const Span*> span_of = spans_of(list, std::move(work));
  const auto add = [&out](Seconds from, Bytes bytes) {
    if (out.moments.empty() || out.moments.back().bytes != bytes) out.moments.push_back({from, bytes});
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (span_of[i] == nullptr) continue;
    add(span_of[i]->start, replay.during[i]);
    add(span_of[i]->end, replay.after[i]);
  }
  return out;
}

/// Sets the memory of ranks and stages. A stage's is that of its replica with the largest bound.
void add_memory(Prediction& out, const Graph& graph, const Topology& topology, const BoundPlan& plan,
                const std::vector<std::vector<Action>>& lists) {
  std::vector<MemoryReplay> replays = replay_memory(graph, topology, plan, lists);
  const auto fits = [&](int rank) {
    const std::optional<Bytes>& memory = device_at(topology, plan.ranks()[to_index(rank)].device).memory;
    return !memory || replays[to_index(rank)].bound <= *memory;
  };
  for (int position = 0; position < plan.positions(); ++position) {
    const int first = plan.first_rank(position);
    int fullest = first;
    for (const int rank : plan.ranks_of(position)) {
      if (replays[to_index(rank)].bound > replays[to_index(fullest)].bound) fullest = rank;
    }
    const MemoryReplay& replay = replays[to_index(fullest)];
    const std::vector<int> ranks = plan.ranks_of(position);
    const std::vector<int>& stages = plan.stages_at(position);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      StagePrediction& stage = out.stages[to_index(stages[i])];
      stage.memory = replay.stages[i];
      stage.memory_bound = replay.bounds[i];
      stage.fits = std::all_of(ranks.begin(), ranks.end(), fits);
    }
  }
  if (out.reckoned_microbatches == 0) {
    std::vector<std::vector<const Span*>> work = work_of_ranks(out.timeline);
    for (int position = 0; position < plan.positions(); ++position) {
      const std::size_t rank = to_index(plan.first_rank(position));
      out.memory_over_time.push_back(memory_over_time_of(replays[rank], lists[rank], std::move(work[rank])));
    }
  }
  for (MemoryReplay& replay : replays) out.timeline.memory.push_back(std::move(replay.peak));
}

/// Sets the idle devices.
void add_idle_devices(Prediction& prediction, const BoundPlan& plan) {
  std::vector<bool> is_used(to_index(prediction.devices), false);
  std::vector<bool> has_work(plan.ranks().size(), false);
  for (const Span& span : prediction.timeline.spans) {
    if (span.action.microbatch >= 0) has_work[to_index(span.rank)] = true;
  }
  for (std::size_t rank = 0; rank < has_work.size(); ++rank) {
    const int device = plan.ranks()[rank].device;
    is_used[to_index(device)] = true;
    if (!has_work[rank]) prediction.idle_devices.push_back(device);
  }
  std::sort(prediction.idle_devices.begin(), prediction.idle_devices.end());
  for (int device = 0; device < prediction.devices; ++device) {
    if (!is_used[to_index(device)]) prediction.unused_devices.push_back(device);
  }
}

}  // namespace

const char* to_string(FigureSource source) {
  for (const auto& [value, name] : source_names()) {
    if (value == source) return name;
  }
  return "";
}

FigureSource figure_source(const std::string& word) {
  std::vector<std::string> known;
  for (const auto& [value, name] : source_names()) {
    if (name == word) return value;
    known.emplace_back(name);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("source", word, known));
}

std::vector<std::vector<int>> stages_of_positions(const Prediction& prediction) {
  // The ranks' first stages are 0, 1, ...; what comes after them are further chunks.
  const std::vector<int>& first = prediction.timeline.stage_of_rank;
  const int stages = to_int(prediction.stages.size());
  const int positions = first.empty() ? stages : std::min(stages, *std::ranges::max_element(first) + 1);
  const bool is_v = std::ranges::any_of(prediction.timeline.spans, [&](const Span& span) {
    return 2 * positions == stages && span.action.stage == stages - 1 && first[to_index(span.rank)] == 0;
  });
  std::vector<std::vector<int>> out;
  for (int position = 0; position < positions; ++position)
    out.push_back(stages_at(position, stages, positions, is_v ? Placement::V : Placement::Loop));
  return out;
}

std::string bubble_text(const Prediction& prediction, const std::string& mark) {
  std::string out = fmt::format("idle {}{:.1f} %", mark, prediction.bubble * 100);
  if (prediction.unused_devices.empty()) return out;
  const double used = 1 - static_cast<double>(prediction.unused_devices.size()) / prediction.devices;
  return out + fmt::format(" ({}{:.1f} % with the devices that are not in any stage)", mark,
                           (1 - (1 - prediction.bubble) * used) * 100);
}

std::string throughput_text(const Prediction& prediction, const std::string& mark) {
  if (!prediction.samples_per_s) return "";
  std::string out = fmt::format("{}{:.1f} samples per second", mark, *prediction.samples_per_s);
  const int used = prediction.devices - to_int(prediction.unused_devices.size());
  if (used > 1) out += fmt::format(" ({}{:.1f} per device)", mark, *prediction.samples_per_s / used);
  return out;
}

std::string rates_lines(const Prediction& prediction, const std::string& mark) {
  const int used = prediction.devices - to_int(prediction.unused_devices.size());
  std::string out = work_rates_text(prediction.rates, used, mark);
  if (!out.empty()) out += "\n";
  if (const std::string low = low_share_text(prediction.rates, prediction.bubble); !low.empty())
    out += "note: " + low + "\n";
  return out;
}

std::string idle_text(const Prediction& prediction) {
  const std::vector<int>& idle = prediction.idle_devices;
  const std::vector<int>& unused = prediction.unused_devices;
  if (idle.empty() && unused.empty()) return "";
  std::string out = std::to_string(idle.size() + unused.size()) + " of " + std::to_string(prediction.devices) +
                    " devices " + (idle.size() + unused.size() == 1 ? "is" : "are") + " idle: ";
  const auto is = [](const std::vector<int>& devices, const char* one, const char* several) {
    return format_ranges(devices) + (devices.size() == 1 ? one : several);
  };
  if (!idle.empty()) out += is(idle, " has no microbatch", " have no microbatch");
  if (!idle.empty() && !unused.empty()) out += ", ";
  if (!unused.empty()) out += is(unused, " is not in any stage", " are not in any stage");
  return out;
}

std::variant<Prediction, Infeasible> predict(const Graph& graph, const Topology& topology, const BoundPlan& plan,
                                             const PredictOptions& options) {
  validate(plan, graph, topology);
  auto result = replay_step(graph, topology, plan, options);
  if (auto* infeasible = std::get_if<Infeasible>(&result)) return std::move(*infeasible);
  StepReplay& replayed = std::get<StepReplay>(result);

  Prediction out;
  out.timeline = std::move(replayed.timeline);
  out.reckoned_microbatches = replayed.reckoned_microbatches;
  out.iteration = replayed.time / replayed.steps;
  if (graph.microbatch_samples && out.iteration > Seconds(0)) {
    const double samples = static_cast<double>(*graph.microbatch_samples) * plan.plan().microbatches;
    out.samples_per_s = samples / out.iteration.value;
    out.rates = work_rates(sample_work(graph, topology, plan.plan()), *out.samples_per_s);
  }
  out.yardstick = graph.conditions.yardstick;
  out.stages = predicted_stages(graph, plan, replayed, out.iteration);
  add_memory(out, graph, topology, plan, replayed.input.lists);
  out.devices = device_count(topology);
  add_idle_devices(out, plan);
  Seconds busy;
  for (const StagePrediction& stage : out.stages)
    busy += (stage.compute + stage.update + stage.reduce) * stage.replicas;
  const double rank_time = out.iteration.value * out.timeline.ranks;
  out.bubble = rank_time > 0 ? std::max(0.0, 1 - busy.value / rank_time) : 0;
  out.backward_parts = backward_parts_assumption(graph, plan);
  if (plan.ranks().size() > 1) out.channel = topology.levels.front().link.channel;
  out.message_processing = message_processing_assumption(graph, topology, plan);
  return out;
}

Seconds steady_step(const Timeline& timeline) {
  struct Working {
    Seconds begin{std::numeric_limits<double>::max()};
    Seconds end;
  };
  std::vector<Working> ranks(to_index(timeline.ranks));
  for (const Span& span : timeline.spans) {
    Working& rank = ranks[to_index(span.rank)];
    if (!is_receive(span.action.kind)) rank.begin = std::min(rank.begin, span.start);
    rank.end = std::max(rank.end, span.end);
  }
  // A message moves once its receive is posted, which happens after the rank's last action of the step before.
  std::map<Seconds, Seconds> first_arrivals;  // and when the last message before it began to move
  for (const Working& rank : ranks) first_arrivals.emplace(rank.begin, rank.begin);
  const Seconds last_arrival = first_arrivals.empty() ? Seconds(0) : first_arrivals.rbegin()->first;
  for (const Span& span : timeline.spans) {
    if (span.end > last_arrival || !is_send(span.action.kind)) continue;
    const auto arrival = first_arrivals.find(span.end);
    if (arrival != first_arrivals.end()) arrival->second = std::min(arrival->second, span.start);
  }
  Seconds out;
  for (const Working& rank : ranks) out = std::max(out, rank.end - first_arrivals.at(rank.begin));
  return out;
}

Seconds steady_step(const Prediction& prediction) {
  if (prediction.timeline.steps.size() != 1) return prediction.iteration;
  const Seconds out = steady_step(prediction.timeline);
  return out > Seconds(0) ? std::min(out, prediction.iteration) : prediction.iteration;
}

void set_times(Plan& plan, const Prediction& prediction) {
  plan.iteration = prediction.iteration;
  const Seconds in_run = steady_step(prediction);
  plan.run_iteration.reset();
  if (in_run < prediction.iteration * (1 - 1e-9)) plan.run_iteration = in_run;
}

std::optional<Seconds> step_in_run(const Plan& plan) {
  return plan.run_iteration ? plan.run_iteration : plan.iteration;
}

}  // namespace stagecraft
