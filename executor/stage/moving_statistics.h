#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "executor/channel/channel.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::stage {

/// Number of float32 values that MovingStatistics exchanges per microbatch for `layers` of `model`: one per value of a
/// float32 buffer with a decay, one per byte of other types.
[[nodiscard]] std::int64_t moving_values(const model::Model& model, const std::vector<int>& layers);

/// Buffers with a decay on a replicated stage: running statistics, counts. A forward between `begin` and `end` does not
/// change them, but writes what its microbatch adds to a record; `apply` replays the records of all replicas in
/// microbatch order, so that each replica has the same values as one process after all of them.
class MovingStatistics {
 public:
  /// Those of the layers of `program` for which `wanted` is true of the index in the model's layers. `program` must
  /// outlive it. Throws std::invalid_argument naming layer and buffer for a decay other than 0 and 1 of an integer
  /// type, and for any decay of a bool.
  MovingStatistics(const model::Model& model, const StageProgram& program, const std::function<bool(int)>& wanted);

  void begin();
  void end(int microbatch);
  /// Gathers the records of a step of `microbatches` from all `members`, which all call it. No effect if there are no
  /// such buffers.
  void exchange(channel::Channel& channel, const std::vector<int>& members, int microbatches);
  /// Call when all microbatches of a step are recorded.
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
  std::map<int, at::Tensor> records_;  ///< by microbatch: what it adds, contiguous
};

}  // namespace stagecraft::stage
