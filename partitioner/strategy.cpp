#include "partitioner/strategy.h"

#include <stdexcept>

#include "partitioner/list_strategies.h"
#include "partitioner/pipedream.h"

namespace stagecraft {
namespace {

constexpr const char* kTypePrefix = "type:";

}  // namespace

const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> table = {
      {"uniform", "equal numbers of layers; ignores costs, links, memory", uniform_partition},
      {"parameters", "equal parameter counts; ignores times, links, memory", parameters_partition},
      {"type:REGEX", "equal numbers of layers whose kind or name matches; ignores the rest", type_partition},
      {"profile", "equal forward + backward time; ignores links, memory", profile_partition},
      {"pipedream", "PipeDream's dynamic programme: replication, network levels, its memory rule", pipedream_partition},
  };
  return table;
}

const Strategy& strategy_by_name(const std::string& name) {
  const std::string wanted = name.starts_with(kTypePrefix) ? "type:REGEX" : name;
  std::vector<std::string> known;
  for (const Strategy& strategy : strategies()) {
    if (strategy.name == wanted) return strategy;
    known.push_back(strategy.name);
  }
  throw std::invalid_argument(unknown_name("strategy", name, known));
}

StrategyResult partition(const std::string& name, const Graph& graph, const Topology& topology,
                         StrategyOptions options) {
  const Strategy& strategy = strategy_by_name(name);
  if (name.starts_with(kTypePrefix)) options.regex = name.substr(std::string(kTypePrefix).size());
  return strategy.partition(graph, topology, options);
}

}  // namespace stagecraft
