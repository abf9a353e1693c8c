#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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

/// Records what devices do and for which layer. At most one may exist in a process.
class KernelTracer {
 public:
  virtual ~KernelTracer() = default;
  /// "cupti".
  [[nodiscard]] virtual std::string name() const = 0;
  /// Work that the calling thread launches from now on belongs to `id`, see encode(Tag), until pop or the next push.
  virtual void push(std::uint64_t id) = 0;
  virtual void pop() = 0;
  /// The current time of the clock of the records.
  [[nodiscard]] virtual std::int64_t now_ns() const = 0;
  /// The number of the calling thread in the records.
  [[nodiscard]] virtual std::uint32_t thread() const = 0;
  /// Begins recording and discards older records. A stopped tracer costs no time.
  virtual void start() = 0;
  virtual void stop() = 0;
  /// What was recorded since start or the last take; `changes` is empty. All devices must have finished their work.
  [[nodiscard]] virtual KernelTrace take() = 0;
};

/// A tracer called `name` that calls `make` when it is first told to record or to push an id. From then on it slows
/// down every launch, even while it is stopped; what is timed before is not slowed down.
[[nodiscard]] std::unique_ptr<KernelTracer> make_late_tracer(std::string name,
                                                             std::function<std::unique_ptr<KernelTracer>()> make);

/// A tracer that reads CUPTI's activity records. Throws DeviceError, with advice, if the build has no CUDA, no driver
/// or device is found, another tool uses CUPTI (the message names it), the user lacks permission, or a second copy of
/// libcupti is loaded.
[[nodiscard]] std::unique_ptr<KernelTracer> make_cupti_tracer();

/// Error message with advice for a `call` of CUPTI that failed with status `code`. `holder` is the name of the tool
/// that uses CUPTI already; `admin_only` says that the driver allows tracing for administrators only.
[[nodiscard]] std::string cupti_refusal(const std::string& call, int code, const std::string& holder, bool admin_only);

}  // namespace stagecraft::profiler
