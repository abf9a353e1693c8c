#include "partitioner/strategies/strategies.h"

#include <optional>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "partitioner/strategies/auto.h"
#include "partitioner/strategies/list_strategies.h"
#include "partitioner/strategies/optimal.h"
#include "partitioner/strategies/pipedream.h"

namespace stagecraft::partitioner {
namespace {

/// "type:" of "type:REGEX"; empty for a name without an argument.
std::string prefix_of(const std::string& name) { return name.substr(0, name.find(':') + 1); }

bool goes_by(const Strategy& strategy, const std::string& name) {
  const std::string prefix = prefix_of(strategy.name);
  return prefix.empty() ? strategy.name == name : name.starts_with(prefix);
}

}  // namespace

const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> table = {
      uniform_strategy(),   parameters_strategy(), type_strategy(),    profile_strategy(),
      pipedream_strategy(), auto_strategy(),       optimal_strategy(),
  };
  return table;
}

std::string strategies_with(bool Strategy::* property) {
  std::vector<std::string> names;
  for (const Strategy& strategy : strategies()) {
    if (strategy.*property) names.push_back(strategy.name);
  }
  return joined_words(names, "and");
}

const Strategy& strategy_by_name(const std::string& name) {
  std::vector<std::string> known;
  for (const Strategy& strategy : strategies()) {
    if (goes_by(strategy, name)) return strategy;
    known.push_back(strategy.name);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("strategy", name, known));
}

OptionValues options_of_name(const std::string& name) {
  const Strategy& strategy = strategy_by_name(name);
  const std::string prefix = prefix_of(strategy.name);
  if (prefix.empty()) return {};
  return {{strategy.name.substr(prefix.size()), name.substr(prefix.size())}};
}

namespace {

/// Why the topology has too few devices for a request; absent where its stages or chunks are a strategy's to choose, or
/// contradict each other.
std::optional<Infeasible> cannot_hold(const Topology& topology, const Constraints& constraints) {
  const std::vector<int>& replicas = constraints.replicas;
  const int stages = constraints.stages.value_or(to_int(replicas.size()));
  const PlanSettings& settings = constraints.plan;
  const bool chooses_chunks =
      !constraints.chunks && settings.listed.empty() && schedule_by_name(settings.schedule).chunked;
  const int chunks = chunk_counts(constraints).front();
  if (chooses_chunks || chunks < 1 || stages % chunks != 0) return std::nullopt;
  if (!replicas.empty() && to_int(replicas.size()) != stages) return std::nullopt;
  return too_few_devices(topology, stages, chunks, replicas);
}

}  // namespace

StrategyResult plan_with(const std::string& name, const Graph& graph, const Topology& topology, const CostModel& costs,
                         Constraints constraints) {
  const Strategy& strategy = strategy_by_name(name);
  constraints.options.merge(options_of_name(name));
  if (constraints.replicas.size() == 1 && constraints.stages)
    constraints.replicas.assign(to_index(*constraints.stages), constraints.replicas.front());
  if (!strategy.decides_stages) {
    if (auto few = cannot_hold(topology, constraints)) return std::move(*few);
  }
  return strategy.plan(graph, topology, costs, constraints);
}

}  // namespace stagecraft::partitioner
