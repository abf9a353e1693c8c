#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "executor/channel/channel.h"
#include "executor/stage/stage_program.h"

namespace stagecraft {

/// Number of float32 values that MovingStatistics exchanges a microbatch for `layers` of `model`: one for each of a
/// float32 buffer with a decay, one for each byte of others.
[[nodiscard]] std::int64_t moving_values(const Model& model, const std::vector<int>& layers);

/// Buffers with a decay that several replicas see microbatches for: running statistics, counts. A forward between
/// `begin` and `end` leaves them as they are and what its microbatch adds to them in a record; `apply` replays the
/// records of all replicas in the order of the microbatches, so that each replica holds what one process holds after
/// all of them.
class MovingStatistics {
 public:
  /// Those of the layers of `program` for which `wanted` is true of the index in the model's layers. `program` must
  /// outlive it. Throws std::invalid_argument naming layer and buffer for a decay other than 0 and 1 of a type that
  /// holds whole numbers, and for any of a bool.
  MovingStatistics(const Model& model, const StageProgram& program, const std::function<bool(int)>& wanted);

  void begin();
  void end(int microbatch);
  /// Gathers the records of a step of `microbatches` from all `members`, which all call it. Nothing where there are no
  /// such buffers.
  void exchange(Channel& channel, const std::vector<int>& members, int microbatches);
  /// To be called once all microbatches of a step are recorded.
  void apply();
  /// Instead of apply: forgets the records.
  void drop() { records_.clear(); }

 private:
  struct Running {
    at::Tensor value;  ///< the program's own
    double decay = 0;
  };
  std::vector<Running> running_;
  std::vector<at::Tensor> kept_;       ///< their values while a forward runs
  std::int64_t values_ = 0;            ///< in a record
  std::map<int, at::Tensor> records_;  ///< by microbatch: what it adds, all in a row
};

}  // namespace stagecraft
