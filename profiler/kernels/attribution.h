#pragma once

#include <cstdint>
#include <string>
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

}  // namespace stagecraft::profiler
