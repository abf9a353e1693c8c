#pragma once

#include <string>

#include "costmodel/bound_plan.h"

namespace stagecraft::interchange {

/// The lists of `plan` as torch.distributed.pipelining's CSV, see actions_csv.h: only computation, or with `transfers`
/// also sends, receives and reduces, each receive right before the action that needs it. Throws std::invalid_argument
/// for a schedule that updates in the middle of its lists.
[[nodiscard]] std::string plan_actions_csv(const BoundPlan& plan, bool transfers = false);

/// A Python program for torchrun that trains the user's model in the stages of `bound`: it marks split points at the
/// first layers of the stages, whose ids are the modules' paths in the model, builds each rank's stages with
/// torch.distributed.pipelining and runs the plan's lists, or one of torch's schedules by name. The program itself
/// refuses a model with a different order of modules. Throws std::invalid_argument for a plan that torch cannot run:
/// replicas, a tensor that skips a stage, a schedule that does not train or that updates in the middle of its lists.
[[nodiscard]] std::string torch_pipelining_script(const BoundPlan& bound);

}  // namespace stagecraft::interchange
