#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <vector>

#include "costmodel/schedule.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"

namespace stagecraft {

/// The parameters of one stage under an asynchronous schedule: an update makes a new version, and microbatches that are
/// under way keep theirs. A version is one copy, which lives as long as somebody computes with it.
class WeightVersions {
 public:
  /// `weights`: which version a microbatch of which step computes with. `program` and `optimizer` must outlive it; the
  /// program's parameters are version 0.
  WeightVersions(Weights weights, StageProgram& program, Optimizer& optimizer);

  /// To be called before the forward of `microbatch` of step `step`: the program computes with the microbatch's
  /// version.
  void begin(int microbatch, int step);
  /// To be called before the backward of `microbatch`: the same version again.
  void resume(int microbatch);
  /// To be called after it: takes the gradients off the version and adds them to those that wait for the next update.
  void collect(int microbatch);
  /// The gradients that wait, one per parameter; undefined where there is none.
  [[nodiscard]] std::vector<at::Tensor>& waiting() { return waiting_; }
  /// Applies the waiting gradients, divided by `divisor`, to the newest version, which makes one more.
  void update(double divisor, double rate_factor);
  /// Updates so far.
  [[nodiscard]] int updates() const { return updates_; }

 private:
  using Version = std::shared_ptr<std::vector<at::Tensor>>;
  Weights weights_;
  StageProgram& program_;
  Optimizer& optimizer_;
  std::map<int, Version> versions_;  ///< by the number of updates that made them
  std::map<int, Version> used_;      ///< by microbatch under way
  std::vector<at::Tensor> waiting_;
  int updates_ = 0;
};

}  // namespace stagecraft
