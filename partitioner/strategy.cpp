#include "partitioner/strategy.h"

#include <algorithm>
#include <stdexcept>

#include "costmodel/errors.h"
#include "partitioner/list_strategies.h"
#include "partitioner/pipedream.h"
#include "partitioner/ranking.h"

namespace stagecraft::partitioner {

Strategy optimal_strategy();  // of a room that rests on this one

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
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i)
    out += (i == 0 ? "" : i + 1 < names.size() ? ", " : " and ") + names[i];
  return out;
}

const Strategy& strategy_by_name(const std::string& name) {
  std::vector<std::string> known;
  for (const Strategy& strategy : strategies()) {
    if (goes_by(strategy, name)) return strategy;
    known.push_back(strategy.name);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("strategy", name, known));
}

Seconds time_limit(const OptionValues& options) {
  const std::optional<double> seconds = option<double>(options, kTimeLimit);
  return seconds ? Seconds(*seconds) : kDefaultTimeLimit;
}

OptionValues options_of_name(const std::string& name) {
  const Strategy& strategy = strategy_by_name(name);
  const std::string prefix = prefix_of(strategy.name);
  if (prefix.empty()) return {};
  return {{strategy.name.substr(prefix.size()), name.substr(prefix.size())}};
}

StrategyResult plan_with(const std::string& name, const Graph& graph, const Topology& topology, const CostModel& costs,
                         Constraints constraints) {
  constraints.options.merge(options_of_name(name));
  return strategy_by_name(name).plan(graph, topology, costs, constraints);
}

}  // namespace stagecraft::partitioner
