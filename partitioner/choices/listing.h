#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/format/results/plan_list_json.h"
#include "costmodel/graph.h"
#include "costmodel/text/table.h"
#include "costmodel/topology.h"
#include "partitioner/choices/choice.h"
#include "partitioner/choices/gather.h"
#include "partitioner/choices/settings.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// "2.1": by how many percent at most a step of `iteration` exceeds the shortest, which is at least `lower_bound`, a
/// time above 0. Rounded, but never down to 0.
[[nodiscard]] std::string gap_percent(Seconds iteration, Seconds lower_bound);

/// "the best possible", or "at most 2.1 % above the best possible": of a step of `iteration` and a lower bound.
[[nodiscard]] std::string gap_text(Seconds iteration, Seconds lower_bound);

/// The compared plans, best first, as a table no wider than the screen: a row for each shape, which is the replicas of
/// all stages, in order or placed, with its best plan; of many shapes only the first ones. Then, where
/// there are any, how many others there are, what was not simulated, how ties are decided, and what was skipped. `mark`
/// comes before every figure.
[[nodiscard]] std::string ranking_text(const Ranking& ranking, const std::string& mark, const Screen& screen);

/// Which plans of the gathered ones a list has, and what it says about them.
struct ListRequest {
  bool front = false;  ///< front_of the plans; else the best ones
  int most = 0;        ///< 0: all
  Goal goal = {};
  std::optional<double> price = {};        ///< per device-hour
  std::optional<Bytes> memory_limit = {};  ///< of a device; absent: unlimited
};

/// The plans for a list, best first; of the front, those that meet the goal. Empty if none meets it.
[[nodiscard]] std::vector<RankedPlan> chosen(std::vector<RankedPlan> plans, const ListRequest& request);

/// The document of a list. `plans` are not empty, all of one schedule and number of microbatches.
[[nodiscard]] format::PlanList plan_list(const std::vector<RankedPlan>& plans, const Gathered& gathered,
                                         const ListRequest& request);

/// The list as text: a table no wider than the screen, of at most `lines` plans (0: all), and how many more there
/// are. `mark` goes before each figure.
[[nodiscard]] std::string list_text(const format::PlanList& list, int lines, const std::string& mark,
                                    const Screen& screen);

/// The document of a search: the best plan, and what is known about each setting, best first: settings with a plan by
/// step, then the others by bound. Bounds do not hold for topologies with several types of devices and are left out.
[[nodiscard]] format::PlanList settings_list(const SettingsSearch& search, const SettingSpace& space,
                                             const Topology& topology);

/// The settings of a list as text: a table no wider than the screen, of at most `lines` settings (0: all), how
/// many more there are, and how many are open. `mark` goes before each figure.
[[nodiscard]] std::string settings_list_text(const format::PlanList& list, int lines, const std::string& mark,
                                             const Screen& screen);

/// The same in one line, for a plan's provenance: "best of 24 settings, 3 of them open: 4 microbatches of 8 samples,
/// gpipe".
[[nodiscard]] std::string settings_note(const SettingsSearch& search, const SettingSpace& space);

/// The plans with several schedules, one for each, as a table no wider than the screen, and why some have none. `mark`
/// goes before each figure.
[[nodiscard]] std::string schedules_text(const SettingsSearch& search, const std::string& mark, const Screen& screen);

/// The same in one line, for a plan's provenance: "gpipe 14.0 ms, 1f1b 12.0 ms; no plan with zb-h1".
[[nodiscard]] std::string schedules_note(const SettingsSearch& search);

}  // namespace stagecraft::partitioner
