#pragma once

#include <string>
#include <vector>

#include "costmodel/plan.h"
#include "costmodel/schedule.h"

namespace stagecraft {

// The text form of torch.distributed.pipelining's schedules (torch 2.11, _load_csv and _dump_csv, "compute_only" and
// "compute_comms"): a line for each rank, cells with commas between them, an empty cell for an idle slot. Cells:
//   1F0, 1B0, 1I0, 1W0        stage 1, microbatch 0: forward, backward, or its two halves, inputs and weights;
//   1SEND_F0, 1RECV_F0        the activation to stage 2, from stage 0;  1SEND_B0, 1RECV_B0: the gradient to 0, from 2;
//   1REDUCE_GRAD              the stage's gradients are summed over its replicas;
//   1UNSHARD, 1RESHARD        read and left out, no parameters are sharded here;
//   (1F2;1B0)OVERLAP_F_B      read as its parts, one after the other.
// Updates have no cell: they follow a list. Which rank a transfer goes to is told by the microbatch, as everywhere.

/// The actions of each rank. I is read as Backward, and each I needs its W on the same line. Throws FormatError
/// "FILE: line N: cell M: found, wanted" for anything else, a stage above 2^24, a microbatch from 2^20, and a half of a
/// backward without its other half.
[[nodiscard]] std::vector<std::vector<Action>> parse_actions_csv(const std::string& text, const std::string& file);
/// The text, which reads back to the same. Throws std::invalid_argument for an Update, a transfer between stages that
/// are no neighbours, and a WeightGradient without its Backward.
[[nodiscard]] std::string actions_csv(const std::vector<std::vector<Action>>& lists);

/// One line of it, without its end. Throws std::invalid_argument "cell M: found, wanted".
[[nodiscard]] std::vector<Action> parse_actions_row(const std::string& row);
/// The inverse; throws as actions_csv.
[[nodiscard]] std::string actions_row(const std::vector<Action>& list);

/// A plan for lists that came without one: stages in a row, a layer and a boundary each, as many replicas as lists hold
/// its stage, schedule "listed". Lists with nothing in them are replicas of the stage before. Throws
/// std::invalid_argument if ranks are not in the order of ranks(), or stages do not lie as in a PipelineShape.
[[nodiscard]] Plan plan_of_lists(const std::vector<std::vector<Action>>& lists);

}  // namespace stagecraft
