#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "profiler/kernels/trace.h"

namespace stagecraft {

/// Sees what devices do and for whom. One alive at a time in a process.
class KernelTracer {
 public:
  virtual ~KernelTracer() = default;
  /// "cupti".
  [[nodiscard]] virtual std::string name() const = 0;
  /// What the calling thread launches from now on is `id`'s (encode(Tag)), until pop or the next push.
  virtual void push(std::uint64_t id) = 0;
  virtual void pop() = 0;
  /// The clock of the records.
  [[nodiscard]] virtual std::int64_t now_ns() const = 0;
  /// The number that records give the calling thread.
  [[nodiscard]] virtual std::uint32_t thread() const = 0;
  /// Begins recording, with nothing from before. What is stopped costs nothing.
  virtual void start() = 0;
  virtual void stop() = 0;
  /// What was recorded since start or the last take; `changes` stays empty. No device may be at work.
  [[nodiscard]] virtual KernelTrace take() = 0;
};

/// A tracer over CUPTI's activity records. To be made before the first CUDA call. Throws DeviceError that says what to
/// do: built without CUDA, no driver or device, another tool holds CUPTI (with its name), no permission, a second copy
/// of libcupti.
[[nodiscard]] std::unique_ptr<KernelTracer> make_cupti_tracer();

/// What to tell a user whose CUPTI refused with status `code` of `call`; `holder` names the subscriber that was there
/// before, `admin_only` says that the driver keeps tracing to administrators.
[[nodiscard]] std::string cupti_refusal(const std::string& call, int code, const std::string& holder, bool admin_only);

}  // namespace stagecraft
