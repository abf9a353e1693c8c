#include "partitioner/strategies/pipedream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "costmodel/index.h"
#include "partitioner/candidate.h"
#include "partitioner/search/downsets.h"
#include "partitioner/search/pipedream_search.h"

namespace stagecraft::partitioner {
namespace {

constexpr int kMostDownsets = 200'000;

void check(const PipedreamOptions& options) {
  if (options.memory_limit <= Bytes(0)) {
    throw std::invalid_argument("strategy pipedream: memory limit: found " +
                                std::to_string(options.memory_limit.value) + ", must be above 0 bytes");
  }
  const auto ratio = options.activation_compression_ratio;
  if (ratio && !(*ratio > 0 && std::isfinite(*ratio))) {
    throw std::invalid_argument("strategy pipedream: activation compression ratio: found " + std::to_string(*ratio) +
                                ", expected a number above 0");
  }
}

/// Stage of every layer: the first stage whose set contains it; otherwise, in topological order, the latest stage of
/// its sources.
std::vector<int> stage_of_layer(const Graph& graph, const Downsets& sets, const std::vector<SearchStage>& stages) {
  std::vector<int> result(graph.layers.size(), -1);
  std::vector<bool> placed(graph.layers.size(), false);
  for (std::size_t node = 0; node < sets.layer_of_node.size(); ++node) {
    const auto layer = to_index(sets.layer_of_node[node]);
    for (std::size_t s = 0; s < stages.size() && !placed[layer]; ++s) {
      if (!sets.has(stages[s].to, to_int(node))) continue;
      result[layer] = to_int(s);
      placed[layer] = true;
    }
  }
  std::vector<std::vector<std::size_t>> sources(graph.layers.size());
  for (const Edge& edge : graph.edges) { sources[to_index(edge.destination)].push_back(to_index(edge.source)); }
  for (const int index : topological_order(graph)) {
    const auto layer = to_index(index);
    if (placed[layer] || is_input(graph.layers[layer])) continue;
    result[layer] = 0;
    for (const std::size_t source : sources[layer]) result[layer] = std::max(result[layer], result[source]);
  }
  return result;
}

/// A memory limit, within 1 % of the smallest, that has an answer; absent if memory is not the obstacle.
std::optional<Bytes> sufficient_limit(const Downsets& sets, const std::vector<SearchLevel>& levels,
                                      PipedreamOptions options) {
  const auto solvable = [&](Bytes limit) {
    options.memory_limit = limit;
    const auto result = pipedream_search(sets, levels, options);
    const auto* answer = std::get_if<SearchAnswer>(&result);
    return answer != nullptr && !answer->stages.empty();
  };
  int most = 1;
  for (const SearchLevel& level : levels) most = std::max(most, level.machines);
  Bytes low = options.memory_limit;
  Bytes high = std::max(low, most * (sets.activation.back() + sets.parameter.back()));
  if (!solvable(high)) return std::nullopt;
  while (high / low > 1.01 && high - low > Bytes(1)) {
    const double mean = std::sqrt(static_cast<double>(low.value) * static_cast<double>(high.value));
    const Bytes middle = std::max(low + Bytes(1), Bytes(static_cast<std::int64_t>(mean)));
    (solvable(middle) ? high : low) = middle;
  }
  return high;
}

Infeasible why_none(const Downsets& sets, const std::vector<SearchLevel>& levels, const PipedreamOptions& options,
                    int devices) {
  if (options.use_memory_constraint) {
    if (const auto limit = sufficient_limit(sets, levels, options)) {
      return {"no partition fits every stage in " + std::to_string(options.memory_limit.value) + " bytes, a limit of " +
              std::to_string(limit->value) + " would do"};
    }
  }
  return {fmt::format("a straight pipeline on {0} devices needs {0} stages; the graph cannot be cut into so many",
                      devices)};
}

std::vector<SearchLevel> levels_of(const Topology& topology) {
  std::vector<SearchLevel> out;
  for (const Level& level : topology.levels) out.push_back({level.count, level.link.bandwidth});
  return out;
}

constexpr const char* kStraight = "straight-pipeline";
constexpr const char* kMemoryConstraint = "use-memory-constraint";
constexpr const char* kMemorySize = "memory-size";
constexpr const char* kFewerMachines = "use-fewer-machines";
constexpr const char* kCompression = "activation-compression-ratio";

PipedreamOptions options_of(const Constraints& constraints) {
  if (constraints.stages) {
    throw std::invalid_argument("strategy pipedream: stages: found " + std::to_string(*constraints.stages) +
                                "; remove it, pipedream finds the number itself");
  }
  PipedreamOptions out = pipedream_options(constraints.options);
  if (constraints.memory_limit) {
    out.use_memory_constraint = true;
    out.memory_limit = *constraints.memory_limit;
  }
  return out;
}

StrategyResult plan(const Graph& graph, const Topology& topology, const CostModel& costs,
                    const Constraints& constraints) {
  const ToldSearch told(costs.progress, kPipedreamStrategy);
  if (const int chunks = chunk_counts(constraints).front(); chunks > 1) {
    throw std::invalid_argument("strategy pipedream: makes one stage per device, found " + std::to_string(chunks) +
                                " chunks; use auto or profile");
  }
  auto found = pipedream_candidate(graph, topology, options_of(constraints));
  if (auto* infeasible = std::get_if<Infeasible>(&found)) return std::move(*infeasible);
  Ranking out;
  out.plans.push_back(
      predicted_plan(kPipedreamStrategy, graph, topology, std::get<Candidate>(found), costs, constraints));
  return out;
}

/// The set of all layers of the stages up to and including `last`; absent if it is not one of `sets`.
std::optional<int> set_behind(const Downsets& sets, const std::vector<int>& stage_of_layer, int last) {
  for (int set = 0; set < sets.count(); ++set) {
    bool same = true;
    for (std::size_t node = 0; node < sets.layer_of_node.size() && same; ++node) {
      const int stage = stage_of_layer[to_index(sets.layer_of_node[node])];
      // PipeDream skips layers that are in no set.
      same = !sets.has(sets.count() - 1, to_int(node)) || sets.has(set, to_int(node)) == (stage <= last);
    }
    if (same) return set;
  }
  return std::nullopt;
}

std::optional<double> objective(const Graph& graph, const Topology& topology, const CostModel&,
                                const Constraints& constraints, const Plan& plan) {
  const auto grown = pipedream_downsets(graph, kMostDownsets);
  if (topology.levels.size() != 1 || std::holds_alternative<Infeasible>(grown)) return std::nullopt;
  const Downsets& sets = std::get<Downsets>(grown);
  const std::vector<int> stage_of_layer = partition_of(graph, plan).stage_of_layer;
  std::vector<SearchStage> stages;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const auto set = set_behind(sets, stage_of_layer, to_int(s));
    if (!set) return std::nullopt;
    stages.push_back({stages.empty() ? 0 : stages.back().to, *set, plan.stages[s].devices});
  }
  const auto time = pipedream_time(sets, levels_of(topology).front(), stages, options_of(constraints));
  if (!time) return std::nullopt;
  return time->value;
}

}  // namespace

std::variant<Candidate, Infeasible> pipedream_candidate(const Graph& graph, const Topology& topology,
                                                        const PipedreamOptions& options) {
  check(options);
  auto grown = pipedream_downsets(graph, kMostDownsets);
  if (auto* infeasible = std::get_if<Infeasible>(&grown)) return std::move(*infeasible);
  const Downsets& sets = std::get<Downsets>(grown);
  const std::vector<SearchLevel> levels = levels_of(topology);
  auto result = pipedream_search(sets, levels, options);
  if (auto* infeasible = std::get_if<Infeasible>(&result)) return std::move(*infeasible);
  const SearchAnswer& answer = std::get<SearchAnswer>(result);
  if (answer.stages.empty()) return why_none(sets, levels, options, device_count(topology));

  Candidate candidate;
  candidate.steady_state = answer.time;
  candidate.endless = true;
  candidate.partition.stage_of_layer = stage_of_layer(graph, sets, answer.stages);
  for (const SearchStage& stage : answer.stages) {
    candidate.partition.replicas.push_back(to_int(stage.devices.size()));
    candidate.devices.push_back(stage.devices);
  }
  return candidate;
}

PipedreamOptions pipedream_options(const OptionValues& values) {
  PipedreamOptions out;
  out.straight_pipeline = option<bool>(values, kStraight).value_or(false);
  out.use_memory_constraint = option<bool>(values, kMemoryConstraint).value_or(false);
  out.memory_limit = option<Bytes>(values, kMemorySize).value_or(out.memory_limit);
  out.use_fewer_machines = option<bool>(values, kFewerMachines).value_or(false);
  out.activation_compression_ratio = option<double>(values, kCompression);
  return out;
}

Strategy pipedream_strategy() {
  Strategy out;
  out.name = kPipedreamStrategy;
  out.help = "PipeDream's dynamic programming: replication, network levels, its memory rule";
  out.plan = plan;
  out.objective = objective;
  out.exact = true;
  out.in_auto = true;
  out.decides_stages = true;
  out.has_memory_rule = true;
  out.options_title = "PipeDream";
  out.options = {
      {{kStraight, "straight_pipeline"}, OptionKind::Flag, "no replicas"},
      {{kMemoryConstraint, "use_memory_constraint"},
       OptionKind::Flag,
       "PipeDream's memory rule with the limit --memory-size"},
      {{kMemorySize, "memory_size", "s"}, OptionKind::Bytes, "its limit (default: 16e9)"},
      {{kFewerMachines, "use_fewer_machines"}, OptionKind::Flag, "devices may stay idle"},
      {{kCompression, "activation_compression_ratio"},
       OptionKind::Positive,
       "divide transfers by this ratio (default: transfers are free)"},
  };
  out.caveat = [](const OptionValues& options) -> std::string {
    if (options.contains(kCompression)) return "";
    return "transfers between stages are free, as in PipeDream; use --activation-compression-ratio 1 to price them";
  };
  return out;
}

}  // namespace stagecraft::partitioner
