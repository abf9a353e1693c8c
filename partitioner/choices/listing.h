#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/format/results/plan_list_json.h"
#include "costmodel/graph.h"
#include "costmodel/text/terminal.h"
#include "partitioner/choices/choice.h"
#include "partitioner/choices/gather.h"

namespace stagecraft::partitioner {

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

}  // namespace stagecraft::partitioner
