#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "executor/channel/channel.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::stage {

/// Sums the gradients of tied parameters: over the layers of one stage as autograd does with one tensor that is used
/// several times, then over stages and ranks.
class TiedGradients {
 public:
  /// `tied`: those that this rank holds, in the order in which all ranks sum them. `programs` are the stages that it
  /// holds, in order; they and the channel must outlive this.
  TiedGradients(channel::Channel& channel, const std::vector<TiedHolders>& tied, std::vector<StageProgram*> programs);

  /// Whether the parameter is tied.
  [[nodiscard]] bool is_tied(const std::string& name) const;

  /// Call after each part of a microbatch's backward of `program`, `last` after its last part. If several layers of a
  /// stage hold a parameter, their gradients are summed before they are added to those of earlier microbatches.
  void add_copies(std::size_t program, int microbatch, bool last);

  /// Sums over all holders, in one order on all ranks. A parameter without a gradient from any holder has none
  /// afterwards. The message of a sum has one more value, the number of ranks with a gradient. Call once per step,
  /// after the last backward.
  void reduce();

 private:
  /// The leaves of the layers of one stage that hold the parameter.
  struct Copies {
    std::size_t program = 0;
    std::vector<std::size_t> leaves;               // positions in the program's leaves
    at::Tensor sum;                                // of several copies' gradients, over the finished microbatches
    std::map<int, std::vector<at::Tensor>> begun;  // by microbatch with a half-finished backward: one gradient per copy
  };
  struct Tie {
    std::string name;
    std::vector<Copies> stages;
    std::vector<int> ranks;
    int tag = 0;
  };
  [[nodiscard]] at::Tensor& value(const Copies& copies, std::size_t i) const;
  /// `sum`, which may be undefined, summed over the ranks of `tie`; undefined if it is on all.
  [[nodiscard]] at::Tensor over_ranks(const Tie& tie, const at::Tensor& sum) const;

  channel::Channel& channel_;
  std::vector<StageProgram*> programs_;
  std::vector<Tie> ties_;
};

}  // namespace stagecraft::stage
