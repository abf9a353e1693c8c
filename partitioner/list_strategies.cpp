#include "partitioner/list_strategies.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <regex>
#include <set>
#include <stdexcept>

#include "costmodel/split.h"

namespace stagecraft {
namespace {

const Layer& layer_at(const Graph& graph, int index) { return graph.layers[static_cast<std::size_t>(index)]; }

Seconds both_ways(const Layer& layer) { return layer.forward.median + layer.backward.median; }

/// Stops run as long as they weigh at most `limit` for each of their replicas; the last bound is the last layer
/// reached.
std::vector<int> filled_bounds(const std::vector<double>& weights, int parts, double limit,
                               const std::vector<int>& replicas) {
  const int layers = static_cast<int>(weights.size());
  std::vector<int> bounds = {0};
  for (int part = 0; part < parts; ++part) {
    int at = bounds.back();
    const int furthest = layers - (parts - 1 - part);  // one layer at least for each later run
    const double most = replicas.empty() ? limit : limit * replicas[static_cast<std::size_t>(part)];
    double sum = 0;
    while (at < furthest && sum + weights[static_cast<std::size_t>(at)] <= most) {
      sum += weights[static_cast<std::size_t>(at++)];
    }
    bounds.push_back(at);
  }
  return bounds;
}

using Bounds = std::vector<int> (*)(const std::vector<double>& weights, int parts, const std::vector<int>& replicas);

StrategyResult list_partition(const Graph& graph, const Topology& topology, const StrategyOptions& options,
                              const std::vector<int>& layers, const std::vector<double>& weights, Bounds bounds_of) {
  std::vector<int> replicas = options.constraints.replicas;
  const int stages = options.constraints.stages.value_or(replicas.empty() ? device_count(topology)
                                                                          : static_cast<int>(replicas.size()));
  if (!replicas.empty() && static_cast<int>(replicas.size()) != stages) {
    throw std::invalid_argument("replicas: found " + std::to_string(replicas.size()) + " numbers for " +
                                std::to_string(stages) + " stages, wanted one a stage");
  }
  for (const int count : replicas) {
    if (count < 1) throw std::invalid_argument("replicas: found " + std::to_string(count) + ", wanted at least 1");
  }
  if (stages < 1) throw std::invalid_argument("stages: found " + std::to_string(stages) + ", wanted at least 1");
  if (stages > device_count(topology)) {
    return Infeasible{std::to_string(stages) + " stages need as many devices, the topology has " +
                      std::to_string(device_count(topology))};
  }
  if (stages > static_cast<int>(layers.size())) {
    return Infeasible{std::to_string(stages) + " stages need as many layers, the graph has " +
                      std::to_string(layers.size()) + " beside its inputs"};
  }
  std::vector<int> at_work = replicas;
  for (int& count : at_work) count = std::min(count, options.microbatches.value_or(count));
  const std::vector<int> bounds = bounds_of(weights, stages, at_work);
  if (replicas.empty()) at_work.assign(static_cast<std::size_t>(stages), 1);
  if (replicas.empty()) replicas.assign(static_cast<std::size_t>(stages), 1);
  const std::int64_t devices = std::accumulate(replicas.begin(), replicas.end(), std::int64_t{0});
  if (devices > device_count(topology)) {
    return Infeasible{"the replicas need " + std::to_string(devices) + " devices, the topology has " +
                      std::to_string(device_count(topology))};
  }
  Candidate candidate;
  candidate.partition.stage_of_layer.assign(graph.layers.size(), -1);
  candidate.partition.replicas = replicas;
  Seconds slowest;
  for (int stage = 0; stage < stages; ++stage) {
    Seconds time;
    const auto s = static_cast<std::size_t>(stage);
    for (int i = bounds[s]; i < bounds[s + 1]; ++i) {
      const int layer = layers[static_cast<std::size_t>(i)];
      candidate.partition.stage_of_layer[static_cast<std::size_t>(layer)] = stage;
      time += both_ways(layer_at(graph, layer));
    }
    slowest = std::max(slowest, time / at_work[s]);
  }
  candidate.steady_state = slowest;
  return std::vector<Candidate>{std::move(candidate)};
}

std::regex compiled(const std::string& text) {
  try {
    return std::regex(text, std::regex::ECMAScript | std::regex::icase);
  } catch (const std::regex_error& error) {
    throw std::invalid_argument("strategy type:REGEX: \"" + text + "\" is not a regular expression: " + error.what());
  }
}

}  // namespace

std::vector<int> uniform_bounds(int layers, int parts) {
  if (parts < 1 || layers < 0) {
    throw std::invalid_argument("uniform bounds: found " + std::to_string(layers) + " layers in " +
                                std::to_string(parts) + " parts, wanted at least 0 in at least 1");
  }
  std::vector<int> bounds = {0};
  for (int part = 0; part < parts; ++part) bounds.push_back(bounds.back() + layers / parts + (part < layers % parts));
  return bounds;
}

std::vector<int> balanced_bounds(const std::vector<double>& weights, int parts, const std::vector<int>& replicas) {
  if (parts < 1 || parts > static_cast<int>(weights.size())) {
    throw std::invalid_argument("balanced bounds: found " + std::to_string(parts) + " parts, wanted 1 to " +
                                std::to_string(weights.size()));
  }
  for (const double weight : weights) {
    if (!(weight >= 0) || std::isinf(weight)) {
      throw std::invalid_argument("balanced bounds: a weight is negative or not finite");
    }
  }
  // Doubles of one sign are ordered as their bit patterns are, so this finds the exact least limit in 63 rounds.
  std::uint64_t low = 0;
  std::uint64_t high = std::bit_cast<std::uint64_t>(std::numeric_limits<double>::max());
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    const bool fits = filled_bounds(weights, parts, std::bit_cast<double>(middle), replicas).back() ==
                      static_cast<int>(weights.size());
    (fits ? high : low) = fits ? middle : middle + 1;
  }
  return filled_bounds(weights, parts, std::bit_cast<double>(low), replicas);
}

StrategyResult uniform_partition(const Graph& graph, const Topology& topology, const StrategyOptions& options) {
  const std::vector<int> layers = layer_list(graph);
  return list_partition(graph, topology, options, layers, std::vector<double>(layers.size(), 1),
                        [](const std::vector<double>& weights, int parts, const std::vector<int>&) {
                          return uniform_bounds(static_cast<int>(weights.size()), parts);
                        });
}

StrategyResult parameters_partition(const Graph& graph, const Topology& topology, const StrategyOptions& options) {
  const std::vector<int> layers = layer_list(graph);
  std::vector<double> weights;
  for (const int index : layers) {
    const Layer& layer = layer_at(graph, index);
    weights.push_back(static_cast<double>(layer.parameters.value_or(layer.parameter_bytes.value / 4)));
  }
  return list_partition(graph, topology, options, layers, weights, balanced_bounds);
}

StrategyResult type_partition(const Graph& graph, const Topology& topology, const StrategyOptions& options) {
  const std::regex regex = compiled(options.regex);
  const std::vector<int> layers = layer_list(graph);
  std::vector<double> weights;
  std::set<std::string> kinds;
  bool any = false;
  for (const int index : layers) {
    const Layer& layer = layer_at(graph, index);
    const bool matches = std::regex_search(layer.kind, regex) || std::regex_search(layer.name, regex);
    weights.push_back(matches ? 1 : 0);
    any = any || matches;
    kinds.insert(layer.kind);
  }
  if (!any) {
    std::string listed;
    for (const std::string& kind : kinds) listed += (listed.empty() ? "" : ", ") + kind;
    throw std::invalid_argument("strategy type:REGEX: \"" + options.regex + "\" matches no layer, kinds are " + listed);
  }
  return list_partition(graph, topology, options, layers, weights, balanced_bounds);
}

StrategyResult profile_partition(const Graph& graph, const Topology& topology, const StrategyOptions& options) {
  const std::vector<int> layers = layer_list(graph);
  std::vector<double> weights;
  for (const int index : layers) weights.push_back(both_ways(layer_at(graph, index)).value);
  return list_partition(graph, topology, options, layers, weights, balanced_bounds);
}

}  // namespace stagecraft
