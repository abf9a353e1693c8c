#include "profiler/kernels/tracer.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace stagecraft::profiler {
namespace {

// CUptiResult, as cupti_result.h numbers them.
enum Status {
  kVirtualized = 33,
  kInsufficientPrivileges = 35,
  kMultipleSubscribers = 39,
  kVirtualizedPrivileges = 40,
  kConfidentialComputing = 41,
  kMig = 43,
  kWsl = 45
};

constexpr const char* kFallBack = "or measure with --clock events";

class LateTracer : public KernelTracer {
 public:
  LateTracer(std::string name, std::function<std::unique_ptr<KernelTracer>()> make)
      : name_(std::move(name)), make_(std::move(make)) {}
  std::string name() const override { return name_; }
  void push(std::uint64_t id) override { made().push(id); }
  void pop() override { made().pop(); }
  std::int64_t now_ns() const override { return made().now_ns(); }
  std::uint32_t thread() const override { return made().thread(); }
  void start() override { made().start(); }
  void stop() override {
    if (tracer_) tracer_->stop();
  }
  KernelTrace take() override { return made().take(); }

 private:
  /// Called first by the thread that begins to record, before others compute.
  KernelTracer& made() const {
    if (!tracer_) tracer_ = make_();
    return *tracer_;
  }

  std::string name_;
  std::function<std::unique_ptr<KernelTracer>()> make_;
  mutable std::unique_ptr<KernelTracer> tracer_;
};

}  // namespace

std::unique_ptr<KernelTracer> make_late_tracer(std::string name, std::function<std::unique_ptr<KernelTracer>()> make) {
  return std::make_unique<LateTracer>(std::move(name), std::move(make));
}

std::string cupti_refusal(const std::string& call, int code, const std::string& holder, bool admin_only) {
  std::string out = fmt::format("{} failed with status {}: ", call, code);
  const auto to = std::back_inserter(out);
  switch (code) {
    case kMultipleSubscribers:
      fmt::format_to(to,
                     "{} uses CUPTI, which serves one tool at a time; close it (nsys, ncu, cuda-gdb, "
                     "compute-sanitizer, torch's profiler), {}",
                     holder.empty() ? "another tool" : "\"" + holder + "\"", kFallBack);
      break;
    case kInsufficientPrivileges:
    case kVirtualizedPrivileges:
      fmt::format_to(to, "this user may not trace the GPU{}; {}, {}",
                     admin_only ? " (the driver's RmProfilingAdminOnly is 1)" : "",
                     admin_only ? "run with CAP_PERFMON or CAP_SYS_ADMIN, or load the driver with "
                                  "NVreg_RestrictProfilingToAdminUsers=0"
                                : "give the container CAP_PERFMON or CAP_SYS_ADMIN",
                     kFallBack);
      break;
    case kVirtualized:
    case kConfidentialComputing:
    case kMig:
    case kWsl:
      fmt::format_to(to,
                     "this kind of device (virtual, confidential, MIG or WSL) cannot be traced here; measure with "
                     "--clock events");
      break;
    default:
      fmt::format_to(to,
                     "the driver or CUPTI is not usable here; compare the driver with the CUDA version that "
                     "stagecraft was built for, {}",
                     kFallBack);
  }
  return out;
}

}  // namespace stagecraft::profiler
