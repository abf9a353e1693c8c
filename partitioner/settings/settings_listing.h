#pragma once

#include <string>
#include <vector>

#include "costmodel/format/results/plan_list_json.h"
#include "costmodel/text/terminal.h"
#include "costmodel/topology.h"
#include "partitioner/settings/setting_space.h"
#include "partitioner/settings/settings_search.h"

namespace stagecraft::partitioner {

/// The document of a search: its best plan and what is known about each setting, best first: settings with a plan by
/// step, then the others by bound. On topologies with several types of devices, for which bounds do not hold, it has
/// none.
[[nodiscard]] format::PlanList settings_list(const SettingsSearch& search, const SettingSpace& space,
                                             const Topology& topology);

/// The settings of a list as text: a table no wider than the screen, of at most `lines` settings (0: all), how
/// many more there are, and how many are open. `mark` goes before each figure.
[[nodiscard]] std::string settings_list_text(const format::PlanList& list, int lines, const std::string& mark,
                                             const Screen& screen);

/// The same in one line, for a plan's provenance: "best of 24 settings, 3 of them open: 4 microbatches of 8 samples,
/// gpipe".
[[nodiscard]] std::string settings_note(const SettingsSearch& search, const SettingSpace& space);

}  // namespace stagecraft::partitioner
