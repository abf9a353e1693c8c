#include "profiler/kernels/trace.h"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"

namespace stagecraft::profiler {
namespace {

constexpr int kLayerBits = 36;
constexpr int kPhaseBits = 4;
constexpr int kCountBits = 12;
constexpr int kMicrobatchShift = kLayerBits + kPhaseBits;
constexpr int kStepShift = kMicrobatchShift + kCountBits;
constexpr std::uint64_t kCountMask = (std::uint64_t{1} << kCountBits) - 1;
constexpr std::int64_t kMostLayers = std::int64_t{1} << kLayerBits;

const std::array<std::string, 9>& names() {
  static const std::array<std::string, 9> all{"none",          "forward",   "backward",      "gradient accumulation",
                                              "recomputation", "optimizer", "communication", "data",
                                              "loss"};
  return all;
}

}  // namespace

std::uint64_t encode(const Tag& tag) {
  if (tag.layer < 0 || tag.layer >= kMostLayers) {
    throw std::invalid_argument("layer " + std::to_string(tag.layer) + " does not fit in a tag, must be 0 to " +
                                std::to_string(kMostLayers - 1));
  }
  if (tag.step < 0 || tag.microbatch < 0) {
    throw std::invalid_argument("step " + std::to_string(tag.step) + " and microbatch " +
                                std::to_string(tag.microbatch) + " do not fit in a tag, must be at least 0");
  }
  if (tag.phase == Phase::None) return 0;
  return (static_cast<std::uint64_t>(tag.step) & kCountMask) << kStepShift |
         (static_cast<std::uint64_t>(tag.microbatch) & kCountMask) << kMicrobatchShift |
         static_cast<std::uint64_t>(tag.phase) << kLayerBits | static_cast<std::uint64_t>(tag.layer);
}

Tag decode_tag(std::uint64_t id) {
  const std::uint64_t phase = id >> kLayerBits & ((1U << kPhaseBits) - 1);
  if (phase == 0 || phase >= names().size()) return {};
  return {static_cast<std::int64_t>(id & (static_cast<std::uint64_t>(kMostLayers) - 1)), static_cast<Phase>(phase),
          to_int(id >> kMicrobatchShift & kCountMask), to_int(id >> kStepShift)};
}

const std::string& name_of(Phase phase) { return names().at(static_cast<std::size_t>(phase)); }

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
