#include "partitioner/choices/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/prediction/estimate.h"
#include "costmodel/schedule.h"
#include "costmodel/text/units_text.h"
#include "partitioner/candidate.h"

namespace stagecraft::partitioner {
namespace {

std::string sizes_text(std::int64_t smallest, std::int64_t largest) {
  return smallest == largest ? fmt::format("{} samples", smallest) : fmt::format("{} to {} samples", smallest, largest);
}

/// Why only sizes of the profiles' range are tried.
std::string range_note(std::int64_t smallest, std::int64_t largest) {
  return fmt::format("only microbatches of {} are tried: for {}others, add profiles with other sizes by --more-graphs",
                     sizes_text(smallest, largest), smallest == largest ? "" : "smaller or larger ");
}

}  // namespace

SizedGraphs sized_graphs(const std::vector<Graph>& profiles, std::int64_t global_batch) {
  std::vector<std::int64_t> sizes;
  for (const Graph& profile : profiles) sizes.push_back(profile.microbatch_samples.value_or(0));
  std::ranges::sort(sizes);
  // Checks that the profiles belong together; that size needs no interpolation.
  (void)graph_of_samples(profiles, sizes.empty() ? 0 : sizes.front());
  SizedGraphs out;
  for (std::int64_t samples = sizes.front(); samples <= std::min(sizes.back(), global_batch); ++samples) {
    if (global_batch % samples != 0) continue;
    if (global_batch / samples > kMostMicrobatches) {
      out.notes.push_back(
          fmt::format("microbatches of {} samples are left out: a step would have {}, at most {} are "
                      "possible",
                      samples, global_batch / samples, kMostMicrobatches));
      continue;
    }
    try {
      ResizedGraph resized = graph_of_samples(profiles, samples);
      out.graphs.push_back({std::move(resized.graph), to_int(global_batch / samples), std::move(resized.origin),
                            std::ranges::binary_search(sizes, samples)});
    } catch (const std::invalid_argument& e) {
      out.notes.push_back(fmt::format("microbatches of {} samples are left out: {}", samples, e.what()));
    }
  }
  if (out.graphs.empty()) {
    std::string reasons;
    for (const std::string& note : out.notes) reasons += "; " + note;
    throw std::invalid_argument(
        fmt::format("no microbatch of {} divides --global-batch {}{}; choose a global batch "
                    "that is a multiple of {}, or add profiles with other sizes by --more-graphs",
                    sizes_text(sizes.front(), sizes.back()), global_batch, reasons, sizes.front()));
  }
  if (sizes.front() > 1 || sizes.back() < global_batch) out.notes.push_back(range_note(sizes.front(), sizes.back()));
  return out;
}

namespace {

/// Parts of all parameters that buckets hold at most.
constexpr std::int64_t kBucketShares[] = {4, 16, 64};

/// Settings without and with recomputation.
std::vector<PlanSettings> with_recomputation(const PlanSettings& plain, const Graph& graph) {
  std::vector<PlanSettings> out{plain};
  const auto layers = std::ranges::count_if(graph.layers, [](const Layer& layer) { return !is_input(layer); });
  for (const int every : recomputation_steps(to_int(layers))) {
    out.push_back(plain);
    out.back().recompute = true;
    out.back().recompute_every = every;
  }
  return out;
}

/// Whether devices may sum gradients, so that buckets matter.
bool sums_gradients(const ScheduleEntry& schedule, const Topology& topology) {
  return schedule.trains && device_count(topology) > 1;
}

/// Sizes of buckets, largest first.
std::vector<Bytes> bucket_sizes(const Graph& graph) {
  Bytes all;
  for (const Layer& layer : graph.layers) all += layer.parameter_bytes;
  std::vector<Bytes> out;
  for (const std::int64_t share : kBucketShares) {
    const auto most = static_cast<std::uint64_t>(all.value / share);
    if (most > 0) out.emplace_back(static_cast<std::int64_t>(std::bit_floor(most)));
  }
  return out;
}

}  // namespace

std::vector<std::string> schedules_to_compare() {
  std::vector<std::string> out;
  for (const ScheduleEntry& schedule : schedules()) {
    if (schedule.trains && schedule.weights == Weights::Flushed && !schedule.needs_lists) out.push_back(schedule.name);
  }
  return out;
}

std::vector<int> recomputation_steps(int layers) {
  std::vector<int> out{0};
  for (int every = 1; every < layers; every *= 2) out.push_back(every);
  return out;
}

std::vector<StepSettings> settings_of(const SettingSpace& space, const Topology& topology) {
  const bool is_limited = memory_limit(topology, space.constraints).has_value();
  std::vector<StepSettings> out;
  for (std::size_t i = 0; i < space.graphs.size(); ++i) {
    const Graph& graph = space.graphs[i].graph;
    for (const std::string& name : space.schedules) {
      const ScheduleEntry schedule = schedule_by_name(name);
      PlanSettings plain = space.constraints.plan;
      plain.schedule = name;
      plain.microbatches = space.graphs[i].microbatches;
      std::vector<PlanSettings> variants{plain};
      if (space.recomputation && is_limited && schedule.trains) variants = with_recomputation(plain, graph);
      for (const PlanSettings& variant : variants) {
        out.push_back({i, variant});
        if (!sums_gradients(schedule, topology)) continue;
        if (space.sharding && is_limited && may_shard(graph, variant)) {
          out.push_back({i, variant});
          out.back().plan.sharding = StateSharding::Optimizer;
          if (name == kSeldomGathers) {
            out.push_back({i, variant});
            out.back().plan.sharding = StateSharding::Parameters;
          }
        }
        if (!space.buckets) continue;
        for (const Bytes bytes : bucket_sizes(graph)) {
          out.push_back({i, variant});
          out.back().plan.gradient_bucket_bytes = bytes;
        }
      }
    }
  }
  return out;
}

bool is_plain(const StepSettings& settings, const SettingSpace& space) {
  const PlanSettings& asked = space.constraints.plan;
  return settings.plan.recompute == asked.recompute && settings.plan.recompute_every == asked.recompute_every &&
         settings.plan.gradient_bucket_bytes == asked.gradient_bucket_bytes && settings.plan.sharding == asked.sharding;
}

std::string recomputation_text(bool recompute, int every) {
  if (!recompute) return "none";
  return every == 0 ? "stages" : fmt::format("every {}", every);
}

std::string settings_text(const StepSettings& settings, const SettingSpace& space) {
  const PlanSettings& plan = settings.plan;
  const std::optional<std::int64_t>& samples = space.graphs[settings.graph].graph.microbatch_samples;
  std::string out = fmt::format("{} microbatches", plan.microbatches);
  if (samples) out += fmt::format(" of {} samples", *samples);
  out += ", " + plan.schedule;
  if (plan.recompute) out += ", recompute " + recomputation_text(true, plan.recompute_every);
  if (plan.gradient_bucket_bytes) out += ", buckets of " + format_bytes(*plan.gradient_bucket_bytes);
  if (plan.sharding != StateSharding::None) out += std::string(", shard ") + to_string(plan.sharding);
  return out;
}

}  // namespace stagecraft::partitioner
