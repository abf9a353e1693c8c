#pragma once

#include <functional>
#include <string>
#include <vector>

#include "costmodel/topology.h"
#include "costmodel/units.h"
#include "partitioner/choices/settings.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// Whether no plan with the trial's settings is shorter than `best`.
[[nodiscard]] bool is_settled(const SettingTrial& trial, Seconds best);

/// Asks `plan` once for each schedule, with its name in the constraints. A std::invalid_argument that it throws is the
/// reason why that schedule has no plan. Throws NoAnswerError with all reasons if none has one. The trials are in the
/// order of the schedules.
[[nodiscard]] SettingsSearch search_schedules(const std::vector<std::string>& schedules, const Constraints& constraints,
                                              const std::function<StrategyResult(const Constraints&)>& plan);

/// Searches all settings of the space with strategy `optimal`, within one time limit (kTimeLimit of the constraints):
///   - the candidates of `auto` with each setting, first the settings whose equal shares seem to be the fastest;
///   - the request's own settings, for up to half of the limit, unless a bound refutes them;
///   - a quick bound of all others;
///   - rounds in which each setting has an eighth of the time that is left: first the settings with the best
///   candidates,
///     later the settings with the smallest bounds.
/// A setting whose lower bound reaches the best step is done with. Ends when all are. Throws NoAnswerError if no plan
/// fits in memory or is possible, and std::invalid_argument as `optimal` does. The trials are in the order of
/// settings_of, their plans without spans and within memory.
[[nodiscard]] SettingsSearch search_settings(const SettingSpace& space, const Topology& topology,
                                             const CostModel& costs);

}  // namespace stagecraft::partitioner
