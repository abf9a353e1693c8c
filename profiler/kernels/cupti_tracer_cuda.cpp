#include <cuda_runtime_api.h>
#include <cupti.h>
#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <source_location>
#include <vector>

#include "costmodel/errors.h"
#include "executor/device/cuda_handles.h"
#include "executor/device/device.h"
#include "profiler/kernels/decode_cupti.h"
#include "profiler/kernels/trace.h"

namespace stagecraft::profiler {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{8} << 20;
constexpr std::size_t kBuffersAtStart = 8;
constexpr auto kIdKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

// Attribution needs these.
constexpr std::array kNeeded{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                             CUPTI_ACTIVITY_KIND_MEMCPY,
                             CUPTI_ACTIVITY_KIND_MEMCPY2,
                             CUPTI_ACTIVITY_KIND_MEMSET,
                             CUPTI_ACTIVITY_KIND_RUNTIME,
                             CUPTI_ACTIVITY_KIND_DRIVER,
                             CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};
constexpr std::array kWelcome{CUPTI_ACTIVITY_KIND_INTERNAL_LAUNCH_API, CUPTI_ACTIVITY_KIND_OVERHEAD,
                              CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, CUPTI_ACTIVITY_KIND_ENVIRONMENT};

bool tracing_for_administrators_only() {
  std::ifstream in("/proc/driver/nvidia/params");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("RmProfilingAdminOnly:")) return line.find('1') != std::string::npos;
  }
  return false;
}

void check(CUptiResult status, const char* call, const std::string& holder = {},
           std::source_location where = std::source_location::current()) {
  if (status == CUPTI_SUCCESS) return;
  throw DeviceError(cupti_refusal(call, status, holder, tracing_for_administrators_only()) + ", at " +
                    device::place_text(where));
}

/// Files of libcupti in this process: two of them would each see half.
std::set<std::string> mapped_cupti() {
  std::set<std::string> out;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* files) {
        if (std::strstr(info->dlpi_name, "libcupti.so"))
          static_cast<std::set<std::string>*>(files)->insert(info->dlpi_name);
        return 0;
      },
      &out);
  return out;
}

/// The buffers that CUPTI fills. Its callbacks carry no user data, so there is one for the process.
class Buffers {
 public:
  struct Block {
    alignas(8) std::array<std::byte, kBufferBytes> bytes;
  };
  std::byte* get() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) idle_.push_back(std::make_unique<Block>());  // zeroed, as the attribute promises
    used_.push_back(std::move(idle_.back()));
    idle_.pop_back();
    return used_.back()->bytes.data();
  }
  void full(const std::byte* bytes, std::size_t valid) {
    const std::lock_guard lock(mutex_);
    full_.push_back({bytes, valid});
  }
  void prepare(std::size_t count) {
    const std::lock_guard lock(mutex_);
    while (idle_.size() < count) idle_.push_back(std::make_unique<Block>());
  }
  /// What is full, read by `read` and emptied for the next use.
  template <typename Read>
  auto drain(Read read) {
    std::vector<std::span<const std::byte>> full;
    {
      const std::lock_guard lock(mutex_);
      full.swap(full_);
    }
    auto out = read(full);
    const std::lock_guard lock(mutex_);
    for (const std::span<const std::byte> buffer : full) {
      const auto it = std::ranges::find_if(
          used_, [&](const std::unique_ptr<Block>& block) { return block->bytes.data() == buffer.data(); });
      std::memset((*it)->bytes.data(), 0, buffer.size());
      idle_.push_back(std::move(*it));
      used_.erase(it);
    }
    return out;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> idle_;
  std::vector<std::unique_ptr<Block>> used_;
  std::vector<std::span<const std::byte>> full_;
};

Buffers& buffers() {
  static Buffers instance;
  return instance;
}

void CUPTIAPI request(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
  *buffer = reinterpret_cast<std::uint8_t*>(buffers().get());
  *bytes = kBufferBytes;
  *most_records = 0;  // as many as fit
}

void CUPTIAPI complete(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  buffers().full(reinterpret_cast<const std::byte*>(buffer), valid);
}

/// Ids that the thread has pushed: a node of a CUDA graph belongs to the last one while it is captured.
thread_local std::vector<std::uint64_t> pushed;

class CuptiTracer : public KernelTracer {
 public:
  CuptiTracer() {
    if (const auto files = mapped_cupti(); files.size() > 1) {
      std::string list;
      for (const std::string& file : files) list += (list.empty() ? "" : ", ") + file;
      throw DeviceError("two copies of libcupti are loaded; each would see half of the work: " + list +
                        "; build stagecraft with the libcupti that LibTorch links");
    }
    if (const auto reason = device::no_gpu_reason()) throw DeviceError(ErrorKind::NoGpu, *reason);
    attribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE, kBufferBytes);
    attribute(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, std::uint8_t{1});
    check(cuptiSetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM), "cuptiSetThreadIdType");
    std::array<char, CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN> holder{};
    CUpti_SubscriberParams parameters{};
    parameters.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
    parameters.subscriberName = "stagecraft";
    parameters.oldSubscriberName = holder.data();
    parameters.oldSubscriberSize = holder.size();
    const CUptiResult subscribed = cuptiSubscribe_v2(&subscriber_, on_event, this, &parameters);
    check(subscribed, "cuptiSubscribe_v2", holder.data());
    try {
      buffers().prepare(kBuffersAtStart);
      // Once in a process; what throws leaves it to be tried again.
      static std::once_flag registered;
      std::call_once(registered, [] {
        check(cuptiActivityRegisterCallbacks(request, complete), "cuptiActivityRegisterCallbacks");
      });
      for (const auto event : {CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED})
        check(cuptiEnableCallback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, event), "cuptiEnableCallback");
      start();
    } catch (...) {
      cuptiUnsubscribe(subscriber_);
      throw;
    }
  }
  ~CuptiTracer() override {
    enable(false);
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    cuptiUnsubscribe(subscriber_);
    buffers().drain([](const auto& full) { return full.size(); });
  }
  CuptiTracer(const CuptiTracer&) = delete;
  CuptiTracer& operator=(const CuptiTracer&) = delete;

  std::string name() const override { return "cupti"; }
  void push(std::uint64_t id) override {
    check(cuptiActivityPushExternalCorrelationId(kIdKind, id), "cuptiActivityPushExternalCorrelationId");
    pushed.push_back(id);
  }
  void pop() override {
    std::uint64_t id = 0;
    const CUptiResult status = cuptiActivityPopExternalCorrelationId(kIdKind, &id);
    // Whether a thread's stack outlives a stop is not documented.
    if (status != CUPTI_ERROR_QUEUE_EMPTY) check(status, "cuptiActivityPopExternalCorrelationId");
    if (!pushed.empty()) pushed.pop_back();
  }
  std::int64_t now_ns() const override {
    std::uint64_t time = 0;
    check(cuptiGetTimestamp(&time), "cuptiGetTimestamp");
    return static_cast<std::int64_t>(time);
  }
  std::uint32_t thread() const override {
    thread_local const auto id = static_cast<std::uint32_t>(::syscall(SYS_gettid));
    return id;
  }
  void start() override {
    (void)take();
    for (const CUpti_ActivityKind kind : kNeeded) check(cuptiActivityEnable(kind), "cuptiActivityEnable");
    enable(true);
    // Of the calls, only those that launch work are recorded: the others are most of what tracing costs. Their kinds
    // come first, each time: enabling a kind forgets what was said of single calls, and single calls of a kind that was
    // disabled are not recorded. What cannot be switched off only costs time.
    for (const std::uint32_t call : quiet_runtime_) (void)cuptiActivityEnableRuntimeApi(call, 0);
    for (const std::uint32_t call : quiet_driver_) (void)cuptiActivityEnableDriverApi(call, 0);
  }
  void stop() override { enable(false); }

  KernelTrace take() override {
    check(cuptiActivityFlushAll(0), "cuptiActivityFlushAll");
    KernelTrace out = buffers().drain([](const auto& full) { return decode_cupti(full); });
    std::size_t dropped = 0;
    check(cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped), "cuptiActivityGetNumDroppedRecords");
    out.dropped = static_cast<std::int64_t>(dropped);
    const std::lock_guard lock(nodes_mutex_);
    out.graph_nodes = graph_nodes_;
    return out;
  }

 private:
  template <typename Value>
  static void attribute(CUpti_ActivityAttribute name, Value value) {
    std::size_t bytes = sizeof value;
    check(cuptiActivitySetAttribute(name, &bytes, &value), "cuptiActivitySetAttribute");
  }
  /// The kinds that a device may lack, on; or all of them, off.
  static void enable(bool on) noexcept {
    for (const CUpti_ActivityKind kind : kWelcome) (void)(on ? cuptiActivityEnable(kind) : cuptiActivityDisable(kind));
    if (on) return;
    for (const CUpti_ActivityKind kind : kNeeded) (void)cuptiActivityDisable(kind);
  }
  static void CUPTIAPI on_event(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId event, const void* data) {
    if (domain != CUPTI_CB_DOMAIN_RESOURCE) return;
    const auto* graph =
        static_cast<const CUpti_GraphData*>(static_cast<const CUpti_ResourceData*>(data)->resourceDescriptor);
    static_cast<CuptiTracer*>(self)->note_node(event, *graph);
  }
  void note_node(CUpti_CallbackId event, const CUpti_GraphData& graph) {
    // CUPTI is asked outside the lock: its own locks are held around this callback.
    std::uint64_t node = 0;
    std::uint64_t original = 0;
    if (cuptiGetGraphNodeId(graph.node, &node) != CUPTI_SUCCESS) return;
    const bool cloned = event == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED;
    if (cloned && cuptiGetGraphNodeId(graph.originalNode, &original) != CUPTI_SUCCESS) return;
    const std::lock_guard lock(nodes_mutex_);
    if (cloned) {
      const auto it = graph_nodes_.find(original);
      if (it != graph_nodes_.end()) graph_nodes_[node] = it->second;
    } else if (!pushed.empty()) {
      graph_nodes_[node] = pushed.back();
    }
  }

  std::vector<std::uint32_t> quiet_runtime_ = quiet_runtime_calls();
  std::vector<std::uint32_t> quiet_driver_ = quiet_driver_calls();
  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::mutex nodes_mutex_;
  std::map<std::uint64_t, std::uint64_t> graph_nodes_;
};

}  // namespace

std::unique_ptr<KernelTracer> make_cupti_tracer() { return std::make_unique<CuptiTracer>(); }

}  // namespace stagecraft::profiler
