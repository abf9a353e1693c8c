#include "partitioner/pipedream.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "partitioner/downsets.h"
#include "partitioner/pipedream_search.h"

namespace stagecraft {
namespace {

constexpr int kMostDownsets = 200'000;

PipedreamOptions checked(const StrategyOptions& options) {
  if (options.constraints.stages) {
    throw std::invalid_argument("strategy pipedream: stages: found " + std::to_string(*options.constraints.stages) +
                                ", wanted none, it finds the number itself");
  }
  PipedreamOptions checked = options.pipedream;
  if (options.constraints.memory_limit) {
    checked.use_memory_constraint = true;
    checked.memory_limit = *options.constraints.memory_limit;
  }
  if (checked.memory_limit <= Bytes(0)) {
    throw std::invalid_argument("strategy pipedream: memory limit: found " +
                                std::to_string(checked.memory_limit.value) + ", wanted more than 0 bytes");
  }
  const auto ratio = checked.activation_compression_ratio;
  if (ratio && !(*ratio > 0 && std::isfinite(*ratio))) {
    throw std::invalid_argument("strategy pipedream: activation compression ratio: found " + std::to_string(*ratio) +
                                ", wanted a number above 0");
  }
  return checked;
}

/// Stage of every layer: of the first stage's set that holds it; else, in topological order, the latest of its sources.
std::vector<int> stage_of_layer(const Graph& graph, const Downsets& sets, const std::vector<SearchStage>& stages) {
  std::vector<int> result(graph.layers.size(), -1);
  std::vector<bool> placed(graph.layers.size(), false);
  for (std::size_t node = 0; node < sets.layer_of_node.size(); ++node) {
    const auto layer = static_cast<std::size_t>(sets.layer_of_node[node]);
    for (std::size_t s = 0; s < stages.size() && !placed[layer]; ++s) {
      if (!sets.has(stages[s].to, static_cast<int>(node))) continue;
      result[layer] = static_cast<int>(s);
      placed[layer] = true;
    }
  }
  std::vector<std::vector<std::size_t>> sources(graph.layers.size());
  for (const Edge& edge : graph.edges) {
    sources[static_cast<std::size_t>(edge.destination)].push_back(static_cast<std::size_t>(edge.source));
  }
  for (const int index : topological_order(graph)) {
    const auto layer = static_cast<std::size_t>(index);
    if (placed[layer] || is_input(graph.layers[layer])) continue;
    result[layer] = 0;
    for (const std::size_t source : sources[layer]) result[layer] = std::max(result[layer], result[source]);
  }
  return result;
}

/// A limit of memory, within 1 % of the least, that has an answer; none if memory is not what stands in the way.
std::optional<Bytes> sufficient_limit(const Downsets& sets, const std::vector<SearchLevel>& levels,
                                      PipedreamOptions options) {
  const auto solvable = [&](double limit) {
    options.memory_limit = Bytes(static_cast<std::int64_t>(limit));
    const auto result = pipedream_search(sets, levels, options);
    const auto* answer = std::get_if<SearchAnswer>(&result);
    return answer != nullptr && !answer->stages.empty();
  };
  int most = 1;
  for (const SearchLevel& level : levels) most = std::max(most, level.machines);
  double low = static_cast<double>(options.memory_limit.value);
  double high = std::ceil(std::max(low, most * (sets.activation.back() + sets.parameter.back())));
  if (!solvable(high)) return std::nullopt;
  while (high > low * 1.01 && high - low > 1) {
    const double middle = std::max(low + 1, std::floor(std::sqrt(low * high)));
    (solvable(middle) ? high : low) = middle;
  }
  return Bytes(static_cast<std::int64_t>(high));
}

Infeasible why_none(const Downsets& sets, const std::vector<SearchLevel>& levels, const PipedreamOptions& options,
                    int devices) {
  if (options.use_memory_constraint) {
    if (const auto limit = sufficient_limit(sets, levels, options)) {
      return {"no partition keeps every stage within " + std::to_string(options.memory_limit.value) +
              " bytes, a limit of " + std::to_string(limit->value) + " would do"};
    }
  }
  return {"a straight pipeline on " + std::to_string(devices) + " devices needs as many stages, the graph has " +
          std::to_string(sets.count() - 1) + " down-sets and no chain of them that long"};
}

}  // namespace

StrategyResult pipedream_partition(const Graph& graph, const Topology& topology, const StrategyOptions& options) {
  const PipedreamOptions pipedream = checked(options);
  auto grown = pipedream_downsets(graph, kMostDownsets);
  if (auto* infeasible = std::get_if<Infeasible>(&grown)) return std::move(*infeasible);
  const Downsets& sets = std::get<Downsets>(grown);
  std::vector<SearchLevel> levels;
  for (const Level& level : topology.levels) levels.push_back({level.count, level.link.bandwidth.value});
  auto result = pipedream_search(sets, levels, pipedream);
  if (auto* infeasible = std::get_if<Infeasible>(&result)) return std::move(*infeasible);
  const SearchAnswer& answer = std::get<SearchAnswer>(result);
  if (answer.stages.empty()) return why_none(sets, levels, pipedream, device_count(topology));

  Candidate candidate;
  candidate.steady_state = Seconds(answer.time);
  candidate.partition.stage_of_layer = stage_of_layer(graph, sets, answer.stages);
  for (const SearchStage& stage : answer.stages) {
    candidate.partition.replicas.push_back(static_cast<int>(stage.devices.size()));
    candidate.devices.push_back(stage.devices);
  }
  return std::vector<Candidate>{std::move(candidate)};
}

}  // namespace stagecraft
