#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// What a tracer such as CUPTI recorded, as plain values without a driver. All times are nanoseconds of one clock.

namespace stagecraft::profiler {

enum class ActivityKind { Kernel, Copy, Set };

/// Work of a device.
struct DeviceActivity {
  ActivityKind kind = ActivityKind::Kernel;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::uint32_t device = 0;
  std::uint32_t stream = 0;
  std::uint32_t correlation = 0;  ///< the same as that of the call that launched it
  std::uint64_t graph_node = 0;   ///< node of a CUDA graph; 0 if not launched by one
  std::int32_t name = -1;         ///< index into KernelTrace::names; -1 if it has none
  std::int64_t bytes = 0;         ///< copied or set
  friend bool operator==(const DeviceActivity&, const DeviceActivity&) = default;
};

/// A call on the host that may launch work.
struct HostCall {
  std::uint32_t correlation = 0;
  std::uint32_t thread = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  friend bool operator==(const HostCall&, const HostCall&) = default;
};

/// The id that was on top of the launching thread's stack; see encode(Tag).
struct ExternalId {
  std::uint32_t correlation = 0;
  std::uint64_t id = 0;
  friend bool operator==(const ExternalId&, const ExternalId&) = default;
};

/// Thread `thread` worked for `id` from `begin_ns` until its next TagChange. Recorded by our own code at each change,
/// as a second way to attribute work.
struct TagChange {
  std::uint32_t thread = 0;
  std::int64_t begin_ns = 0;
  std::uint64_t id = 0;
  friend bool operator==(const TagChange&, const TagChange&) = default;
};

/// A stretch of host time: the tracer's own overhead, or a wait for the device.
struct HostStretch {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  friend bool operator==(const HostStretch&, const HostStretch&) = default;
};

/// A sample of the device's state.
struct DeviceState {
  std::int64_t time_ns = 0;
  std::uint32_t device = 0;
  double sm_clock_hz = 0;
  double memory_clock_hz = 0;
  bool throttled = false;
  friend bool operator==(const DeviceState&, const DeviceState&) = default;
};

/// Everything recorded between two flushes, in any order.
struct KernelTrace {
  std::vector<DeviceActivity> activities;
  std::vector<HostCall> calls;
  std::vector<ExternalId> ids;
  std::vector<TagChange> changes;
  std::map<std::uint64_t, std::uint64_t> graph_nodes;  ///< CUDA graph node -> id, recorded during capture
  std::vector<HostStretch> overhead;
  std::vector<HostStretch> waits;
  std::vector<DeviceState> states;
  std::vector<std::string> names;
  std::int64_t dropped = 0;  ///< records lost because the tracer's buffers were full
  std::int64_t unknown = 0;  ///< records of a kind that is not read
  friend bool operator==(const KernelTrace&, const KernelTrace&) = default;
};

}  // namespace stagecraft::profiler
