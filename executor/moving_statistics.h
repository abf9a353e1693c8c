#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "executor/channel.h"
#include "executor/stage_program.h"

namespace stagecraft {

/// How far one microbatch moves batch norm's running statistics.
inline constexpr double kBatchNormMomentum = 0.1;

/// Number of values of the running statistics of `layers` of `model`: what MovingStatistics exchanges a microbatch.
[[nodiscard]] std::int64_t moving_values(const Model& model, const std::vector<int>& layers);

/// Running statistics that several replicas see microbatches for. A forward between `begin` and `end` leaves them as
/// they are and what its microbatch adds to them in a record; `apply` replays the records of all replicas in the order
/// of the microbatches, so that each replica holds what one process holds after all of them.
class MovingStatistics {
 public:
  /// Those of the batch norm layers of `program` for which `wanted` is true of the index in the model's layers.
  /// `program` must outlive it.
  MovingStatistics(const Model& model, const StageProgram& program, const std::function<bool(int)>& wanted);

  void begin();
  void end(int microbatch);
  /// Gathers the records of a step of `microbatches` from all `members`, which all call it. Nothing where there are no
  /// running statistics.
  void exchange(Channel& channel, const std::vector<int>& members, int microbatches);
  /// To be called once all microbatches of a step are recorded.
  void apply();

 private:
  std::vector<at::Tensor> running_;    ///< the program's own
  std::vector<at::Tensor> kept_;       ///< their values while a forward runs
  std::int64_t values_ = 0;            ///< of all running statistics
  std::map<int, at::Tensor> records_;  ///< by microbatch: what it adds, all in a row
};

}  // namespace stagecraft
