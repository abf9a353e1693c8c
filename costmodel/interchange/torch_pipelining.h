#pragma once

#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/plan.h"
#include "costmodel/schedule.h"

namespace stagecraft::interchange {

// The CSV format of torch.distributed.pipelining's schedules: a line for each rank, see format/plan_json.h. Updates
// have no cell: they follow a list. The microbatch determines the rank to which a transfer goes, as everywhere.

/// The actions of each rank. I is read as Backward, and each I needs its W on the same line. Throws FormatError
/// "FILE: line N: cell M: found, expected" for anything else, a stage above 2^24, a microbatch from 2^20, and a half of
/// a backward without its other half.
[[nodiscard]] std::vector<std::vector<Action>> parse_actions_csv(const std::string& text, const std::string& file);
/// The text, which reads back to the same. Throws std::invalid_argument for an Update, a transfer between stages that
/// are not adjacent, and a WeightGradient without its Backward.
[[nodiscard]] std::string actions_csv(const std::vector<std::vector<Action>>& lists);

/// A plan for lists that come without one: a chain of stages with one layer and one boundary each, as many replicas of
/// a stage as lists that contain it, and schedule "listed". Empty lists are replicas of the stage before. Throws
/// std::invalid_argument if ranks are not in the order of ranks(), or stages are not placed as in a PipelineShape.
[[nodiscard]] Plan plan_of_lists(const std::vector<std::vector<Action>>& lists);

/// The lists of `plan` as torch.distributed.pipelining's CSV: only computation, or with `transfers` also sends,
/// receives and reduces, each receive right before the action that needs it. Throws std::invalid_argument for a
/// schedule that updates in the middle of its lists.
[[nodiscard]] std::string plan_actions_csv(const BoundPlan& plan, bool transfers = false);

/// A Python program for torchrun that trains the user's model in the stages of `bound`: it marks split points at the
/// first layers of the stages, whose ids are the modules' paths in the model, builds each rank's stages with
/// torch.distributed.pipelining and runs the plan's lists, or one of torch's schedules by name. The program itself
/// refuses a model with a different order of modules. Throws std::invalid_argument for a plan that torch cannot run:
/// replicas, a tensor that skips a stage, a schedule that does not train or that updates in the middle of its lists.
[[nodiscard]] std::string torch_pipelining_script(const BoundPlan& bound);

}  // namespace stagecraft::interchange
