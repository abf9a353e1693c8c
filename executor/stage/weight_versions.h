#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <vector>

#include "costmodel/schedule.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::stage {

/// The parameters of one stage under an asynchronous schedule: an update makes a new version, and microbatches in
/// flight keep theirs. A version is one copy, which exists as long as it is in use.
class WeightVersions {
 public:
  /// `weights`: which version the microbatches of a step use. `program` and `optimizer` must outlive it; the program's
  /// parameters are version 0.
  WeightVersions(Weights weights, StageProgram& program, Optimizer& optimizer);

  /// Call before the forward of `microbatch` of step `step`: the program then uses the microbatch's version.
  void begin(int microbatch, int step);
  /// Call before the backward of `microbatch`: selects the same version again.
  void resume(int microbatch);
  /// Call after it: takes the gradients from the version and adds them to those that wait for the next update.
  void collect(int microbatch);
  /// The gradients that wait, one per parameter; undefined where there is none.
  [[nodiscard]] std::vector<at::Tensor>& waiting() { return waiting_; }
  /// Applies the waiting gradients, divided by `divisor`, to the newest version: to a copy of it if a microbatch in
  /// flight or the next step still needs it, otherwise in place.
  void update(double divisor, double rate_factor);
  /// Number of updates so far.
  [[nodiscard]] int updates() const { return updates_; }

 private:
  using Version = std::shared_ptr<std::vector<at::Tensor>>;
  Weights weights_;
  StageProgram& program_;
  Optimizer& optimizer_;
  std::map<int, Version> versions_;  ///< by the number of updates that made them
  std::map<int, Version> used_;      ///< by microbatch in flight
  std::vector<at::Tensor> waiting_;
  int updates_ = 0;
};

}  // namespace stagecraft::stage
