#pragma once

#include <string>
#include <vector>

#include "costmodel/plan.h"
#include "costmodel/schedule.h"

namespace stagecraft {

// The text form of torch.distributed.pipelining's schedules: a line for each rank, see format/actions_row.h. Updates
// have no cell: they follow a list. Which rank a transfer goes to is told by the microbatch, as everywhere.

/// The actions of each rank. I is read as Backward, and each I needs its W on the same line. Throws FormatError
/// "FILE: line N: cell M: found, wanted" for anything else, a stage above 2^24, a microbatch from 2^20, and a half of a
/// backward without its other half.
[[nodiscard]] std::vector<std::vector<Action>> parse_actions_csv(const std::string& text, const std::string& file);
/// The text, which reads back to the same. Throws std::invalid_argument for an Update, a transfer between stages that
/// are no neighbours, and a WeightGradient without its Backward.
[[nodiscard]] std::string actions_csv(const std::vector<std::vector<Action>>& lists);

/// A plan for lists that came without one: stages in a row, a layer and a boundary each, as many replicas as lists hold
/// its stage, schedule "listed". Lists with nothing in them are replicas of the stage before. Throws
/// std::invalid_argument if ranks are not in the order of ranks(), or stages do not lie as in a PipelineShape.
[[nodiscard]] Plan plan_of_lists(const std::vector<std::vector<Action>>& lists);

}  // namespace stagecraft
