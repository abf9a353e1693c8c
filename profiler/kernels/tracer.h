#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "profiler/kernels/trace.h"

namespace stagecraft::profiler {

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
