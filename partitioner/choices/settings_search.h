#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/topology.h"
#include "costmodel/units.h"
#include "partitioner/choices/settings.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// What a search knows about plans with some settings.
struct SettingTrial {
  StepSettings settings;
  std::optional<RankedPlan> plan;  ///< the best that was found, without spans; it fits in memory
  Seconds lower_bound;             ///< every plan with these settings takes at least this; kForever: there is none
  /// Memory of the candidate that needs the least, if none was found that fits.
  std::optional<Bytes> need;
  bool is_exhausted = false;  ///< a search with these settings was not cut off: see ShorterPlan::is_complete
};

/// The plans of one request with several settings.
struct SettingsSearch {
  std::vector<SettingTrial> trials;  ///< in the order of settings_of
  std::size_t best = 0;              ///< the one whose plan has the shortest step
  /// No plan of the space has a shorter step: the smallest of the trials' bounds; the best plan's step if none is
  /// smaller.
  Seconds lower_bound;
};

/// Whether no plan with the trial's settings is shorter than `best`.
[[nodiscard]] bool is_settled(const SettingTrial& trial, Seconds best);

/// Searches all settings of the space with strategy `optimal`, within one time limit (kTimeLimit of the constraints):
///   - the candidates of `auto` with each of them, those first whose equal shares seem to be the fastest;
///   - the request's own settings, for up to half of the limit, unless a bound refutes them;
///   - a quick bound of all others;
///   - rounds in which each setting has an eighth of the time that is left: first those with the best candidates, later
///     those with the smallest bounds.
/// A setting whose lower bound reaches the best step is done with. Ends when all are. Throws NoAnswerError if no plan
/// fits in memory or is possible, and std::invalid_argument as `optimal` does.
[[nodiscard]] SettingsSearch search_settings(const SettingSpace& space, const Topology& topology,
                                             const CostModel& costs);

}  // namespace stagecraft::partitioner
