#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "profiler/kernels/attribution.h"

namespace stagecraft::profiler {

/// A part of a step: one layer in one phase. Gradient accumulation counts as the layer's backward. In Phase::Data and
/// Phase::None, which is work without an owner, the layer is 0.
struct LayerPhase {
  std::int64_t layer = 0;
  Phase phase = Phase::None;
  friend bool operator==(const LayerPhase&, const LayerPhase&) = default;
  friend auto operator<=>(const LayerPhase&, const LayerPhase&) = default;
};

/// The time of one part of a step, in nanoseconds.
struct PartTime {
  std::int64_t busy_ns = 0;    ///< length of the union of its activities
  std::int64_t active_ns = 0;  ///< its share of the device's busy time: while k parts work, each gets 1/k
  std::int64_t gap_ns = 0;     ///< idle time right before its activities
  std::int64_t span_ns = 0;    ///< from its first start to its last end
  std::int64_t activities = 0;
  std::int64_t accumulating_ns = 0;      ///< length of its gradient accumulations
  std::int64_t accumulating_gap_ns = 0;  ///< part of the gaps right before them
  [[nodiscard]] std::int64_t share_ns() const { return active_ns + gap_ns; }
  friend bool operator==(const PartTime&, const PartTime&) = default;
};

/// Why the device was idle.
struct Gaps {
  std::int64_t host_wait_ns = 0;    ///< the next launch began after the previous work had ended
  std::int64_t kernel_wait_ns = 0;  ///< gaps below 2 us between work that was already launched
  std::int64_t other_ns = 0;        ///< dependencies, synchronisation, data
  friend bool operator==(const Gaps&, const Gaps&) = default;
};

/// The parts of a step [begin, end). Their shares, including those of data and of work without an owner, add up to
/// end - begin exactly.
struct StepShares {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::map<LayerPhase, PartTime> parts;
  std::int64_t work_ns = 0;  ///< length of the union of all activities
  Gaps gaps;
  [[nodiscard]] std::int64_t data_wait_ns() const { return share_of({0, Phase::Data}); }
  /// Work without an owner and the gaps before it, and the gap after the last work.
  [[nodiscard]] std::int64_t unattributed_ns() const { return share_of({0, Phase::None}); }
  [[nodiscard]] std::int64_t share_of(const LayerPhase& part) const {
    const auto it = parts.find(part);
    return it == parts.end() ? 0 : it->second.share_ns();
  }
  friend bool operator==(const StepShares&, const StepShares&) = default;
};

/// The parts of the step [begin, end). Activities outside are ignored, those across its ends are cut. While k parts
/// work, each gets 1/k of the time; nanoseconds that cannot be divided go to the parts in turn. An idle gap goes to the
/// part whose work ends it. `activities` must be sorted as in AttributedTrace. Throws std::invalid_argument if begin >
/// end.
[[nodiscard]] StepShares shares(const std::vector<Attributed>& activities, std::int64_t begin_ns, std::int64_t end_ns);

/// The step scaled to the length `plain_ns` of an unwatched step: work stays, each gap g becomes
/// g (plain - work) / (watched - work). If plain < work, everything is scaled by plain / watched. The shares add up to
/// the step exactly again. `*scaled` tells whether work was scaled.
[[nodiscard]] StepShares debias(StepShares step, std::int64_t plain_ns, bool* scaled = nullptr);

}  // namespace stagecraft::profiler
