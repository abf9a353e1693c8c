#pragma once

#include <cstdint>
#include <string>

namespace stagecraft::profiler {

/// What a piece of work on a device was done for. The ids of trace records contain these values.
enum class Phase {
  None = 0,
  Forward = 1,
  Backward = 2,
  Accumulate = 3,  ///< of a parameter's gradient
  Recompute = 4,
  Optimizer = 5,
  Communication = 6,
  Data = 7,
  Loss = 8
};

/// The owner of a piece of work. `layer` is an index into Model::layers.
struct Tag {
  std::int64_t layer = 0;
  Phase phase = Phase::None;
  int microbatch = 0;
  int step = 0;
  friend bool operator==(const Tag&, const Tag&) = default;
  friend auto operator<=>(const Tag&, const Tag&) = default;
};

/// The tag as an external correlation id: bits 63..52 hold the step, 51..40 the microbatch, 39..36 the phase and 35..0
/// the layer. Step and microbatch are stored modulo 4096. A tag of phase None has the id 0.
/// Throws std::invalid_argument if the layer is negative or needs more than 36 bits, or if step or microbatch is
/// negative.
[[nodiscard]] std::uint64_t encode(const Tag& tag);

/// The inverse of encode for steps and microbatches below 4096. The phase is None if that of `id` is unknown.
[[nodiscard]] Tag decode_tag(std::uint64_t id);

/// "forward", "backward", "gradient accumulation", "recomputation", "optimizer", "communication", "data", "loss",
/// "none".
[[nodiscard]] const std::string& name_of(Phase phase);

}  // namespace stagecraft::profiler
