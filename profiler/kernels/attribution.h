#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "profiler/kernels/trace.h"

namespace stagecraft::profiler {

/// Device work with its owner.
struct Attributed {
  DeviceActivity activity;
  Tag tag;                       ///< phase None if the owner is unknown
  std::int64_t launched_ns = 0;  ///< start of the call that launched it; 0 if no such call was recorded
  friend bool operator==(const Attributed&, const Attributed&) = default;
};

/// How complete and consistent a trace is: counts and nanoseconds of device work.
struct TraceQuality {
  std::int64_t activities = 0;
  std::int64_t attributed = 0;
  std::int64_t busy_ns = 0;  ///< sum of the activities' times
  std::int64_t attributed_ns = 0;
  std::int64_t dropped = 0;
  std::int64_t unknown = 0;
  std::int64_t zero_times = 0;      ///< activities that began or ended at 0
  std::int64_t reversed_times = 0;  ///< activities that ended before they began
  std::int64_t before_launch = 0;   ///< activities that began before the call that launched them
  std::int64_t without_launch = 0;  ///< activities whose launch was not recorded
  /// Activities with different tags by two external ids, or by external id and by thread and time.
  std::int64_t disagreements = 0;
  std::int64_t unmapped_graph_nodes = 0;
  friend bool operator==(const TraceQuality&, const TraceQuality&) = default;
};

/// Sums over several traces.
TraceQuality& operator+=(TraceQuality& quality, const TraceQuality& other);

/// Reasons not to trust a trace, one clause each; empty if it can be trusted. A trace without any device work is not
/// trusted.
[[nodiscard]] std::vector<std::string> distrust(const TraceQuality& quality);

/// Attributed work of one device, sorted by start, then end, then stream.
struct AttributedTrace {
  std::vector<Attributed> activities;
  std::vector<std::string> names;  ///< indexed by DeviceActivity::name
  TraceQuality quality;
  friend bool operator==(const AttributedTrace&, const AttributedTrace&) = default;
};

/// Assigns a tag to each activity: to work of a CUDA graph by its node, to other work by the external id with the same
/// correlation. The order of records does not matter. If `trace.changes` is not empty, each launch gets a tag by its
/// thread and time as well, and differences are counted. Activities with bad times are kept, with their start as end,
/// and counted.
[[nodiscard]] AttributedTrace attribute(const KernelTrace& trace);

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
