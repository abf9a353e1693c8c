#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "costmodel/graph.h"
#include "profiler/subject/subject.h"

namespace stagecraft::profiler {

/// One round of measure_in_flight_slowdown: seconds of the same microbatches in both orders.
struct InFlightRound {
  double one_by_one = 0;  ///< each backward right after its forward
  double in_flight = 0;   ///< all forwards first
};

/// The median over the rounds of in_flight / one_by_one, at least 1. Precondition: there are rounds.
[[nodiscard]] double in_flight_factor_of(const std::vector<InFlightRound>& rounds);

/// Bytes of memory that this machine can give to programs without swapping (MemAvailable); absent if it does not say.
[[nodiscard]] std::optional<Bytes> available_memory();

/// How much longer forwards and backwards of `subject`, on a CPU, take with four microbatches in flight: up to five
/// rounds, or fifteen of a model with short ones, as many as fit in `seconds` if an iteration takes `iteration`. Absent
/// if fewer than two fit, or if the activations, `saved` bytes of a microbatch, would take more than half of the
/// available memory.
[[nodiscard]] std::optional<InFlightSlowdown> measure_in_flight_slowdown(Subject& subject,
                                                                         const std::vector<at::Tensor>& batch,
                                                                         Bytes saved, Seconds iteration,
                                                                         double seconds);

}  // namespace stagecraft::profiler
