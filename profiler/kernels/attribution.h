#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/kernels/tag.h"
#include "profiler/kernels/trace.h"

namespace stagecraft {

/// Device work with its owner.
struct Attributed {
  DeviceActivity activity;
  Tag tag;                       ///< phase None: nobody's
  std::int64_t launched_ns = 0;  ///< when the call that launched it began; 0: no such call was seen
  friend bool operator==(const Attributed&, const Attributed&) = default;
};

/// How good a trace is. Counts and nanoseconds of device work.
struct TraceQuality {
  std::int64_t activities = 0;
  std::int64_t attributed = 0;
  std::int64_t busy_ns = 0;  ///< sum of the activities' times
  std::int64_t attributed_ns = 0;
  std::int64_t dropped = 0;
  std::int64_t unknown = 0;
  std::int64_t zero_times = 0;      ///< activities that began or ended at 0
  std::int64_t reversed_times = 0;  ///< that ended before they began
  std::int64_t before_launch = 0;   ///< that began before the call that launched them
  std::int64_t without_launch = 0;  ///< whose launch was not seen
  std::int64_t disagreements = 0;  ///< that two external ids, or external id and (thread, time), give to different tags
  std::int64_t unmapped_graph_nodes = 0;
  friend bool operator==(const TraceQuality&, const TraceQuality&) = default;
};

/// attributed / activities and attributed_ns / busy_ns; 1 where there is nothing to attribute.
[[nodiscard]] double coverage_by_count(const TraceQuality& quality);
[[nodiscard]] double coverage_by_time(const TraceQuality& quality);

/// Sums over several traces.
TraceQuality& operator+=(TraceQuality& quality, const TraceQuality& other);

/// Why a trace must not be trusted, one clause each; empty: it may. A trace without any device work is not trusted.
[[nodiscard]] std::vector<std::string> distrust(const TraceQuality& quality);

/// Attributed work of one device, by begin, then end, then stream.
struct AttributedTrace {
  std::vector<Attributed> activities;
  std::vector<std::string> names;  ///< that DeviceActivity::name indexes
  TraceQuality quality;
  friend bool operator==(const AttributedTrace&, const AttributedTrace&) = default;
};

/// Gives each activity to a tag: work of a CUDA graph by its node, other work by the external id that shares its
/// correlation. Both joins run over the whole trace, so that it does not matter in which buffer a record came. Where
/// `trace.changes` is not empty each launch is given to a tag by its thread and time as well, and differences counted.
/// Activities with bad times stay in, with no length at their begin, and are counted.
[[nodiscard]] AttributedTrace attribute(const KernelTrace& trace);

}  // namespace stagecraft
