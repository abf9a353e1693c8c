#include "partitioner/strategies/list_strategies.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <regex>
#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/plan.h"
#include "costmodel/text/units_text.h"
#include "partitioner/candidate.h"

namespace stagecraft::partitioner {
namespace {

/// How a graph would have more layers, if it has not all that its model file could have.
std::string finer_text(const Graph& graph) {
  const auto cut = graph.options.find("layers");
  if (cut != graph.options.end() && cut->second == "op") return "";
  return "; a model file that is profiled with --layers op has one for each operator";
}

const Layer& layer_at(const Graph& graph, int index) { return graph.layers[to_index(index)]; }

Seconds both_ways(const Layer& layer) { return layer.forward.median + layer.backward.median; }

/// Stops run as long as they weigh at most `limit` for each of their replicas; the last bound is the last layer
/// reached.
std::vector<int> filled_bounds(const std::vector<double>& weights, int parts, double limit,
                               const std::vector<int>& replicas) {
  const int layers = to_int(weights.size());
  std::vector<int> bounds = {0};
  for (int part = 0; part < parts; ++part) {
    int at = bounds.back();
    const int furthest = layers - (parts - 1 - part);  // at least one layer for each later run
    const double most = replicas.empty() ? limit : limit * replicas[to_index(part)];
    double sum = 0;
    while (at < furthest && sum + weights[to_index(at)] <= most) { sum += weights[to_index(at++)]; }
    bounds.push_back(at);
  }
  return bounds;
}

/// What a strategy balances, and how.
struct Balance {
  std::vector<int> layers;      ///< layer_list
  std::vector<double> weights;  ///< one per layer
  bool by_replicas = true;      ///< a stage's weight is that of its layers over its busy replicas
};

using BalanceOf = Balance (*)(const Graph& graph, const OptionValues& options);

/// Replicas of each stage that have a microbatch.
std::vector<int> at_work(std::vector<int> replicas, const PlanSettings& settings) {
  const std::optional<int> microbatches = microbatches_of_a_step(settings);
  for (int& count : replicas) count = std::min(count, microbatches.value_or(count));
  return replicas;
}

int stage_count(const Topology& topology, const Constraints& constraints) {
  const std::vector<int>& replicas = constraints.replicas;
  const int all_devices = device_count(topology) * chunk_counts(constraints).front();
  return constraints.stages.value_or(replicas.empty() ? all_devices : to_int(replicas.size()));
}

void check(const std::vector<int>& replicas, int stages) {
  if (!replicas.empty() && to_int(replicas.size()) != stages) {
    throw std::invalid_argument("replicas: found " + count_text(replicas.size(), "number") + " for " +
                                count_text(stages, "stage") + ", expected one, or one per stage");
  }
  for (const int count : replicas) {
    if (count < 1) throw std::invalid_argument("replicas: found " + std::to_string(count) + ", must be at least 1");
  }
  if (stages < 1) throw std::invalid_argument("stages: found " + std::to_string(stages) + ", must be at least 1");
}

std::variant<Candidate, Infeasible> list_candidate(const Graph& graph, const Topology& topology,
                                                   const Constraints& constraints, const Balance& balance) {
  const std::vector<int>& layers = balance.layers;
  std::vector<int> replicas = constraints.replicas;
  const int stages = stage_count(topology, constraints);
  check(replicas, stages);
  const int chunks = chunk_counts(constraints).front();
  check_chunks(stages, chunks);
  const int positions = stages / chunks;
  if (auto few = too_few_devices(topology, stages, chunks, replicas)) return std::move(*few);
  if (stages > to_int(layers.size())) {
    return Infeasible{std::to_string(stages) + " stages need as many layers, the graph has " +
                      std::to_string(layers.size()) + " besides its inputs" + finer_text(graph)};
  }
  if (replicas.empty()) replicas.assign(to_index(stages), 1);
  const std::vector<int> working = at_work(replicas, constraints.plan);
  const std::vector<int> bounds = balance.by_replicas ? balanced_bounds(balance.weights, stages, working)
                                                      : uniform_bounds(to_int(layers.size()), stages);
  Candidate candidate;
  candidate.partition.stage_of_layer.assign(graph.layers.size(), -1);
  candidate.partition.replicas = replicas;
  candidate.chunks = chunks;
  std::vector<Seconds> times(to_index(positions));  // of each device
  for (int stage = 0; stage < stages; ++stage) {
    Seconds time;
    const auto s = to_index(stage);
    for (int i = bounds[s]; i < bounds[s + 1]; ++i) {
      const int layer = layers[to_index(i)];
      candidate.partition.stage_of_layer[to_index(layer)] = stage;
      time += both_ways(layer_at(graph, layer));
    }
    times[to_index(position_of(stage, positions, placement_of(constraints.plan)))] += time / working[s];
  }
  candidate.steady_state = *std::ranges::max_element(times);
  return candidate;
}

/// The weight of the heaviest stage; absent for a plan that does not cut the list into the requested stages.
std::optional<double> heaviest(const Graph& graph, const Topology& topology, const Constraints& constraints,
                               const Balance& balance, const Plan& plan) {
  const std::vector<int>& layers = balance.layers;
  const std::vector<int> replicas = replicas_of(plan);
  const auto stages = to_index(stage_count(topology, constraints));
  const std::vector<int> wanted = constraints.replicas.empty() ? std::vector<int>(stages, 1) : constraints.replicas;
  if (replicas != wanted) return std::nullopt;
  const std::vector<int> working = at_work(replicas, constraints.plan);
  double most = 0;
  std::size_t next = 0;
  const auto stage_layers = layers_of_stages(graph, plan);
  for (std::size_t s = 0; s < stage_layers.size(); ++s) {
    double sum = 0;
    for (const Layer* layer : stage_layers[s]) {
      if (&layer_at(graph, layers[next]) != layer) return std::nullopt;
      sum += balance.weights[next++];
    }
    most = std::max(most, balance.by_replicas ? sum / working[s] : sum);
  }
  return most;
}

/// A strategy that cuts the list by `balance_of`; `origin_of` is Plan::strategy.
Strategy list_strategy(std::string name, std::string help, BalanceOf balance_of,
                       std::string (*origin_of)(const std::string& name, const OptionValues& options)) {
  Strategy out;
  out.plan = [=](const Graph& graph, const Topology& topology, const CostModel& costs,
                 const Constraints& constraints) -> StrategyResult {
    const auto found = list_candidate(graph, topology, constraints, balance_of(graph, constraints.options));
    if (const auto* infeasible = std::get_if<Infeasible>(&found)) return *infeasible;
    const CandidateOf again = [&](const Graph& g, const Topology& t) -> std::optional<Candidate> {
      const bool told = constraints.stages || !constraints.replicas.empty();
      if (told && t.levels != topology.levels) return std::nullopt;
      auto other = list_candidate(g, t, constraints, balance_of(g, constraints.options));
      if (std::holds_alternative<Infeasible>(other)) return std::nullopt;
      return std::move(std::get<Candidate>(other));
    };
    return rank_one(origin_of(name, constraints.options), graph, topology, std::get<Candidate>(found), costs,
                    constraints, again);
  };
  out.objective = [=](const Graph& graph, const Topology& topology, const CostModel&, const Constraints& constraints,
                      const Plan& plan) {
    return heaviest(graph, topology, constraints, balance_of(graph, constraints.options), plan);
  };
  out.name = std::move(name);
  out.help = std::move(help);
  out.exact = true;
  return out;
}

std::string plain_name(const std::string& name, const OptionValues&) { return name; }

Balance layer_counts(const Graph& graph, const OptionValues&) {
  Balance out{layer_list(graph), {}, false};
  out.weights.assign(out.layers.size(), 1);
  return out;
}

Balance parameter_counts(const Graph& graph, const OptionValues&) {
  Balance out{layer_list(graph), {}};
  for (const int index : out.layers) {
    const Layer& layer = layer_at(graph, index);
    out.weights.push_back(static_cast<double>(layer.parameters.value_or(layer.parameter_bytes.value / 4)));
  }
  return out;
}

Balance times(const Graph& graph, const OptionValues&) {
  Balance out{layer_list(graph), {}};
  for (const int index : out.layers) out.weights.push_back(both_ways(layer_at(graph, index)).value);
  return out;
}

constexpr const char* kRegex = "REGEX";

std::string regex_text(const OptionValues& options) { return option<std::string>(options, kRegex).value_or(""); }

std::regex compiled(const std::string& text) {
  try {
    return std::regex(text, std::regex::ECMAScript | std::regex::icase);
  } catch (const std::regex_error& error) {
    throw InputError(kind_of(error),
                     "strategy type:REGEX: \"" + text + "\" is not a regular expression: " + error.what());
  }
}

Balance matches(const Graph& graph, const OptionValues& options) {
  const std::string text = regex_text(options);
  const std::regex regex = compiled(text);
  Balance out{layer_list(graph), {}};
  std::set<std::string> kinds;
  bool any = false;
  for (const int index : out.layers) {
    const Layer& layer = layer_at(graph, index);
    const bool found = std::regex_search(layer.kind, regex) || std::regex_search(layer.name, regex);
    out.weights.push_back(found ? 1 : 0);
    any = any || found;
    kinds.insert(layer.kind);
  }
  if (!any) {
    std::string listed;
    for (const std::string& kind : kinds) listed += (listed.empty() ? "" : ", ") + kind;
    throw std::invalid_argument("strategy type:REGEX: \"" + text + "\" matches no layer, kinds are " + listed);
  }
  return out;
}

}  // namespace

std::vector<int> uniform_bounds(int layers, int parts) {
  if (parts < 1 || layers < 0) {
    throw std::invalid_argument("uniform bounds: found " + std::to_string(layers) + " layers in " +
                                std::to_string(parts) + " parts, expected at least 0 layers in at least 1 part");
  }
  std::vector<int> bounds = {0};
  for (int part = 0; part < parts; ++part) bounds.push_back(bounds.back() + layers / parts + (part < layers % parts));
  return bounds;
}

std::vector<int> balanced_bounds(const std::vector<double>& weights, int parts, const std::vector<int>& replicas) {
  if (parts < 1 || parts > to_int(weights.size())) {
    throw std::invalid_argument("balanced bounds: found " + std::to_string(parts) + " parts, expected 1 to " +
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
    const bool fits =
        filled_bounds(weights, parts, std::bit_cast<double>(middle), replicas).back() == to_int(weights.size());
    (fits ? high : low) = fits ? middle : middle + 1;
  }
  return filled_bounds(weights, parts, std::bit_cast<double>(low), replicas);
}

std::variant<Candidate, Infeasible> uniform_candidate(const Graph& graph, const Topology& topology,
                                                      const Constraints& constraints) {
  return list_candidate(graph, topology, constraints, layer_counts(graph, constraints.options));
}

std::variant<Candidate, Infeasible> parameters_candidate(const Graph& graph, const Topology& topology,
                                                         const Constraints& constraints) {
  return list_candidate(graph, topology, constraints, parameter_counts(graph, constraints.options));
}

std::variant<Candidate, Infeasible> profile_candidate(const Graph& graph, const Topology& topology,
                                                      const Constraints& constraints) {
  return list_candidate(graph, topology, constraints, times(graph, constraints.options));
}

Strategy uniform_strategy() {
  return list_strategy("uniform", "equal numbers of layers; ignores costs, links, memory", layer_counts, plain_name);
}

Strategy parameters_strategy() {
  return list_strategy("parameters", "equal parameter counts; ignores times, links, memory", parameter_counts,
                       plain_name);
}

Strategy type_strategy() {
  Strategy out =
      list_strategy("type:REGEX", "equal numbers of layers whose kind or name matches; ignores the rest", matches,
                    [](const std::string&, const OptionValues& options) { return "type:" + regex_text(options); });
  out.example = "type:Linear";
  return out;
}

Strategy profile_strategy() {
  return list_strategy(kProfileStrategy, "equal forward + backward time; ignores links, memory", times, plain_name);
}

}  // namespace stagecraft::partitioner
