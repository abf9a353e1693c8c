#pragma once

#include <cstdint>

#include "costmodel/units.h"

namespace stagecraft::partitioner {

/// What a stage holds at least, by its layers alone. It grows with every layer.
struct StageBytes {
  Bytes state;           ///< parameters, frozen ones, buffers and optimizer state: all the time
  Bytes gradients;       ///< from the end of the first backward on, or all the time
  Bytes per_microbatch;  ///< of each microbatch in flight
  Bytes once;            ///< while any microbatch is in flight: what is run again, of all layers together
  Bytes segment;         ///< likewise, of the layer that needs the most; for recomputation by segments

  StageBytes& operator+=(const StageBytes& layer);
  friend bool operator==(const StageBytes&, const StageBytes&) = default;
};

/// The peak of a stage that holds up to `in_flight` microbatches at once, and `workspace` bytes beside them in the
/// forward of the last of these. `with_gradients`: gradients exist while there are as many; else the first backward
/// that ends makes them, and releases a microbatch. Activations and workspace count `factor` times: of those of the
/// moment with the most bytes. Precondition: in_flight >= 1, factor >= 1.
[[nodiscard]] Bytes peak_bytes(const StageBytes& stage, std::int64_t in_flight, bool with_gradients, Bytes workspace,
                               double factor = 1);

}  // namespace stagecraft::partitioner
