#include "partitioner/remedies.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/text/units_text.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {
namespace {

constexpr int kMostGroups = 8;      ///< times the existing groups
constexpr int kMostDevices = 4096;  ///< more devices beyond it are not tried

class Remedies {
 public:
  Remedies(Bytes limit, const NeedOf& need) : limit_(limit), need_(need) {}

  /// Tries several ways of one remedy until one fits; then true. Of those that do not fit, reports the smallest.
  bool try_one(const std::string& name, const Graph& graph, const Topology& topology, const PlanSettings& settings) {
    std::optional<Bytes> needed;
    try {
      needed = need_(graph, topology, settings);
    } catch (const std::invalid_argument&) { return false; }
    if (!needed) return false;
    if (*needed <= limit_) {
      fitting_ += (fitting_.empty() ? "" : ", ") + name + " (" + format_bytes(*needed) + ")";
      return true;
    }
    if (!least_ || *needed < *least_) {
      least_ = needed;
      least_name_ = name;
    }
    return false;
  }
  /// Ends the ways of one remedy.
  void end(bool fits) {
    if (!fits && least_) failing_ += (failing_.empty() ? "" : ", ") + least_name_ + " (" + format_bytes(*least_) + ")";
    least_.reset();
  }
  [[nodiscard]] bool any() const { return !fitting_.empty(); }
  [[nodiscard]] std::string text() const {
    std::string out;
    if (!fitting_.empty()) out += "; these would fit: " + fitting_;
    if (!failing_.empty()) out += "; these would not fit either: " + failing_;
    return out;
  }

 private:
  Bytes limit_;
  const NeedOf& need_;
  std::string fitting_;
  std::string failing_;
  std::optional<Bytes> least_;
  std::string least_name_;
};

/// Tries to recompute, first whole stages unless the request does, then segments of 1, 2, 4, ... layers.
bool try_recomputing(Remedies& remedies, const std::string& before, const Graph& graph, const Topology& topology,
                     PlanSettings settings) {
  std::vector<int> lengths;
  if (!settings.recompute) lengths.push_back(0);
  settings.recompute = true;
  for (int length = 1; length < to_int(graph.layers.size()); length *= 2) lengths.push_back(length);
  return std::any_of(lengths.begin(), lengths.end(), [&](int length) {
    settings.recompute_every = length;
    const std::string name = length == 0 ? "--recompute" : "--recompute-every " + std::to_string(length);
    return remedies.try_one(before + name, graph, topology, settings);
  });
}

}  // namespace

Graph with_samples(Graph graph, std::int64_t samples) {
  const std::int64_t before = *graph.microbatch_samples;
  const auto scale = [&](Bytes& bytes) {
    // In two parts, so that no product overflows.
    const std::int64_t whole = bytes.value / before * samples;
    const std::int64_t rest = (bytes.value % before * samples + before - 1) / before;
    bytes = Bytes(whole + rest);
  };
  for (Layer& layer : graph.layers) {
    for (Output& output : layer.outputs) scale(output.bytes);
    for (auto* bytes : {&layer.saved_bytes, &layer.workspace_bytes, &layer.saved_for_backward_bytes}) {
      if (*bytes) scale(**bytes);
    }
  }
  graph.microbatch_samples = samples;
  return graph;
}

std::string remedies_text(const Graph& graph, const Topology& topology, const PlanSettings& settings, Bytes limit,
                          const NeedOf& need) {
  Remedies remedies(limit, need);
  const bool trains = settings.listed.empty() ? schedule_by_name(settings.schedule).trains : true;
  const bool may_recompute = trains && !(settings.recompute && settings.recompute_every > 0);
  if (may_recompute) remedies.end(try_recomputing(remedies, "", graph, topology, settings));

  if (may_shard(graph, settings)) {
    PlanSettings divided = settings;
    divided.sharding = StateSharding::Optimizer;
    bool fits = remedies.try_one("--shard optimizer", graph, topology, divided);
    divided.sharding = StateSharding::Parameters;
    divided.schedule = kSeldomGathers;
    const std::string name = std::string("--schedule ") + kSeldomGathers + " --shard parameters";
    if (!fits) fits = remedies.try_one(name, graph, topology, divided);
    remedies.end(fits);
  }

  const std::int64_t samples = graph.microbatch_samples.value_or(1);
  const auto smaller = [&](std::int64_t count) {
    return "microbatches of " + std::to_string(count) + (count == 1 ? " sample" : " samples") + " instead of " +
           std::to_string(samples);
  };
  bool fits = false;
  for (std::int64_t count = samples / 2; count >= 1 && !fits; count /= 2)
    fits = remedies.try_one(smaller(count), with_samples(graph, count), topology, settings);
  remedies.end(fits);

  fits = false;
  for (int times = 2; times <= kMostGroups && !fits; times *= 2) {
    Topology larger = topology;
    larger.levels.back().count *= times;
    if (device_count(topology) > kMostDevices / times) break;
    fits = remedies.try_one(
        std::to_string(device_count(larger)) + " devices instead of " + std::to_string(device_count(topology)), graph,
        larger, settings);
  }
  remedies.end(fits);

  if (!remedies.any() && may_recompute && samples > 1)
    remedies.end(try_recomputing(remedies, smaller(1) + " and ", with_samples(graph, 1), topology, settings));
  return remedies.text();
}

}  // namespace stagecraft::partitioner
