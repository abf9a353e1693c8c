#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <set>
#include <vector>

#include "executor/data/prefetch.h"
#include "executor/run/binding/bound_model.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::run {

/// One stage on a rank, and its microbatches in flight. Slots are indices into the values that the program receives or
/// sends.
struct ResidentStage {
  int stage = 0;
  std::unique_ptr<stage::StageProgram> program;
  std::unique_ptr<stage::Optimizer> optimizer;
  std::vector<std::vector<int>> slots;                   ///< by boundary: the slot of each of its tensors
  std::vector<stage::Flight> flights;                    ///< by microbatch
  std::vector<std::vector<at::Tensor>> input_gradients;  ///< by microbatch, until sent
  std::set<int> split;                                   ///< microbatches whose backward has two parts
  std::vector<stage::SplitBackward> rests;               ///< by microbatch, until its weight gradients are due
  std::unique_ptr<data::Prefetch> data;                  ///< whether its layers read inputs of the model
};

/// Stage `stage` with its first parameters, for `microbatches` microbatches. The model must outlive it.
[[nodiscard]] ResidentStage make_resident_stage(const BoundModel& bound, int stage, int microbatches,
                                                const stage::OptimizerOptions& optimizer, std::uint64_t seed,
                                                stage::Placement placement);

/// Runs the stage once on `data` and on zeros for what it receives, forward and, if the plan trains, backward, and
/// takes an optimizer step elsewhere. Parameters, gradients and buffers stay as they are. A GPU loads a kernel when it
/// is first used, and that may wait for a transfer in progress, whose peer may wait for this rank: call it before the
/// first transfer.
void warm_up(ResidentStage& resident, const BoundModel& bound, const stage::OptimizerOptions& optimizer,
             const stage::Placement& placement, std::vector<at::Tensor> data);

}  // namespace stagecraft::run
