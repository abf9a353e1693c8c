#pragma once

#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// All strategies.
[[nodiscard]] const std::vector<Strategy>& strategies();

/// The default strategy.
inline constexpr const char* kDefaultStrategy = "optimal";

/// "auto and optimal": the names of the strategies with that property, for messages.
[[nodiscard]] std::string strategies_with(bool Strategy::* property);

/// The strategy called `name`; any name that begins with "NAME:" finds the one called NAME:ARGUMENT.
/// Throws std::invalid_argument listing the names.
[[nodiscard]] const Strategy& strategy_by_name(const std::string& name);

/// The options within `name`: what follows the colon.
[[nodiscard]] OptionValues options_of_name(const std::string& name);

/// The plans of the strategy called `name`, with the options in the name and Constraints::options. Infeasible before
/// the strategy is asked if the topology has too few devices.
/// Throws std::invalid_argument for an unknown name, listing the names, and for what the strategy does not support.
[[nodiscard]] StrategyResult plan_with(const std::string& name, const Graph& graph, const Topology& topology,
                                       const CostModel& costs, Constraints constraints = {});

}  // namespace stagecraft::partitioner
