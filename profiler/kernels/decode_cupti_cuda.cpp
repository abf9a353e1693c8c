#include <cupti.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>

#include "profiler/kernels/decode_cupti.h"

namespace stagecraft::profiler {
namespace {

std::vector<std::uint32_t> quiet_calls(CUpti_CallbackDomain domain) {
  std::vector<std::uint32_t> out;
  const char* name = nullptr;
  // Numbered without gaps from 1.
  for (std::uint32_t id = 1; cuptiGetCallbackName(domain, id, &name) == CUPTI_SUCCESS; ++id) {
    if (!launches_work(name)) out.push_back(id);
  }
  return out;
}

// What CUPTI 13.0 writes for each kind; a library that writes other structs is recognised by its version at run time.
static_assert(sizeof(CUpti_ActivityKernel10) == 216 && sizeof(CUpti_ActivityMemcpy6) == 96 &&
              sizeof(CUpti_ActivityMemset4) == 88 && sizeof(CUpti_ActivityAPI) == 40 &&
              sizeof(CUpti_ActivityExternalCorrelation) == 24);

constexpr double kHertzPerMegahertz = 1e6;
constexpr std::uint32_t kNoThrottling = CUPTI_CLOCKS_THROTTLE_REASON_GPU_IDLE |
                                        CUPTI_CLOCKS_THROTTLE_REASON_USER_DEFINED_CLOCKS |
                                        CUPTI_CLOCKS_THROTTLE_REASON_NONE;

/// Records are only promised 8-byte alignment of the buffer as a whole: copy instead of casting.
template <typename Record>
Record copy_of(const CUpti_Activity* record) {
  Record out;
  std::memcpy(&out, record, sizeof out);
  return out;
}

template <typename Record>
DeviceActivity activity_of(const Record& record, ActivityKind kind) {
  DeviceActivity out;
  out.kind = kind;
  out.begin_ns = static_cast<std::int64_t>(record.start);
  out.end_ns = static_cast<std::int64_t>(record.end);
  out.device = record.deviceId;
  out.stream = record.streamId;
  out.correlation = record.correlationId;
  out.graph_node = record.graphNodeId;
  if constexpr (requires { record.bytes; }) out.bytes = static_cast<std::int64_t>(record.bytes);
  return out;
}

template <typename Record>
HostStretch stretch_of(const Record& record) {
  return {static_cast<std::int64_t>(record.start), static_cast<std::int64_t>(record.end)};
}

/// Indices of kernel names in a trace.
class Names {
 public:
  explicit Names(std::vector<std::string>& names) : names_(names) {}
  std::int32_t operator()(const char* name) {
    if (!name) return -1;
    const auto known = by_pointer_.find(name);
    if (known != by_pointer_.end()) return known->second;
    const auto [it, added] = by_text_.try_emplace(name, static_cast<std::int32_t>(names_.size()));
    if (added) names_.emplace_back(name);
    return by_pointer_[name] = it->second;
  }

 private:
  std::vector<std::string>& names_;
  std::unordered_map<const void*, std::int32_t> by_pointer_;
  std::unordered_map<std::string, std::int32_t> by_text_;
};

/// Adds one record to `trace`.
void read(const CUpti_Activity* record, Names& names, KernelTrace& trace) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto kernel = copy_of<CUpti_ActivityKernel10>(record);
      trace.activities.push_back(activity_of(kernel, ActivityKind::Kernel));
      trace.activities.back().name = names(kernel.name);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      trace.activities.push_back(activity_of(copy_of<CUpti_ActivityMemcpy6>(record), ActivityKind::Copy));
      break;
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      trace.activities.push_back(activity_of(copy_of<CUpti_ActivityMemcpyPtoP4>(record), ActivityKind::Copy));
      break;
    case CUPTI_ACTIVITY_KIND_MEMSET:
      trace.activities.push_back(activity_of(copy_of<CUpti_ActivityMemset4>(record), ActivityKind::Set));
      break;
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
    case CUPTI_ACTIVITY_KIND_INTERNAL_LAUNCH_API: {
      const auto call = copy_of<CUpti_ActivityAPI>(record);
      trace.calls.push_back({call.correlationId, call.threadId, static_cast<std::int64_t>(call.start),
                             static_cast<std::int64_t>(call.end)});
      break;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto external = copy_of<CUpti_ActivityExternalCorrelation>(record);
      std::uint32_t kind = 0;  // newer drivers may have kinds that this enumeration does not have
      static_assert(sizeof(kind) == sizeof(external.externalKind));
      std::memcpy(&kind, &external.externalKind, sizeof(kind));
      if (kind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0)
        trace.ids.push_back({external.correlationId, external.externalId});
      break;
    }
    case CUPTI_ACTIVITY_KIND_OVERHEAD: {
      const auto overhead = copy_of<CUpti_ActivityOverhead3>(record);
      trace.overhead.push_back(stretch_of(overhead));
      std::free(overhead.overheadData);
      break;
    }
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
      trace.waits.push_back(stretch_of(copy_of<CUpti_ActivitySynchronization2>(record)));
      break;
    case CUPTI_ACTIVITY_KIND_ENVIRONMENT: {
      const auto environment = copy_of<CUpti_ActivityEnvironment>(record);
      if (environment.environmentKind != CUPTI_ACTIVITY_ENVIRONMENT_SPEED) break;
      const auto& speed = environment.data.speed;
      trace.states.push_back({static_cast<std::int64_t>(environment.timestamp), environment.deviceId,
                              speed.smClock * kHertzPerMegahertz, speed.memoryClock * kHertzPerMegahertz,
                              (speed.clocksThrottleReasons & ~kNoThrottling) != 0});
      break;
    }
    default:
      ++trace.unknown;
  }
}

}  // namespace

bool launches_work(std::string_view name) {
  // The API's prefix, and that of the 64-bit variants of CUDA 3.
  for (const std::string_view prefix : {"__", "cuda", "cu", "64"}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  if (name.starts_with("LaunchHostFunc")) return false;
  return name.starts_with("Launch") || name.starts_with("GraphLaunch") || name.starts_with("Memcpy") ||
         name.starts_with("Memset");
}

std::vector<std::uint32_t> quiet_runtime_calls() { return quiet_calls(CUPTI_CB_DOMAIN_RUNTIME_API); }
std::vector<std::uint32_t> quiet_driver_calls() { return quiet_calls(CUPTI_CB_DOMAIN_DRIVER_API); }

KernelTrace decode_cupti(const std::vector<std::span<const std::byte>>& buffers) {
  KernelTrace trace;
  Names names(trace.names);
  for (const std::span<const std::byte> buffer : buffers) {
    // CUPTI walks the buffer without writing to it, but wants it writable.
    auto* const bytes = reinterpret_cast<std::uint8_t*>(const_cast<std::byte*>(buffer.data()));
    CUpti_Activity* record = nullptr;
    CUptiResult result = CUPTI_SUCCESS;
    while ((result = cuptiActivityGetNextRecord(bytes, buffer.size(), &record)) == CUPTI_SUCCESS) {
      read(record, names, trace);
    }
    if (result != CUPTI_ERROR_MAX_LIMIT_REACHED) ++trace.unknown;
  }
  return trace;
}

}  // namespace stagecraft::profiler
