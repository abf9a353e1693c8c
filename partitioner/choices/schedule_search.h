#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/text/terminal.h"
#include "costmodel/units.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// The schedules that `--schedule best` tries, in the table's order: all that train and give the gradients of one
/// process. The asynchronous ones do not, and "listed" has no lists.
[[nodiscard]] std::vector<std::string> schedules_to_compare();

/// The best plan with one schedule, or why there is none.
struct ScheduleTrial {
  std::string schedule;
  std::variant<RankedPlan, std::string> answer;
};

/// Plans of one request with several schedules.
struct ScheduleSearch {
  std::vector<ScheduleTrial> trials;  ///< in the order of the request
  std::size_t best = 0;               ///< the one whose plan has the shortest step, of those that fit if one does
  /// No plan that was considered with any of the schedules has a shorter step: the smallest of their bounds. Absent
  /// if one of them has none; those without a plan do not count.
  std::optional<Seconds> lower_bound;
};

/// Asks `plan` once for each schedule, with its name in the constraints. A std::invalid_argument that it throws is the
/// reason why that schedule has no plan. Throws std::runtime_error with all reasons if none has one.
[[nodiscard]] ScheduleSearch search_schedules(const std::vector<std::string>& schedules, const Constraints& constraints,
                                              const std::function<StrategyResult(const Constraints&)>& plan);

/// A table of the trials. `mark` comes before each figure.
[[nodiscard]] std::string trials_text(const ScheduleSearch& search, const std::string& mark, const Screen& screen);

/// The same in one line, for a plan's provenance: "gpipe 14.0 ms, 1f1b 12.0 ms; no plan with zb-h1".
[[nodiscard]] std::string trials_note(const ScheduleSearch& search);

}  // namespace stagecraft::partitioner
