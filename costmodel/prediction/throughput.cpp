#include "costmodel/prediction/throughput.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/prediction/cards.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/schedule.h"
#include "costmodel/text/units_text.h"

namespace stagecraft {
namespace {

/// A lower share of the peak is called low: large models usually reach 0.44 to 0.52, see throughput.h.
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

}  // namespace stagecraft
