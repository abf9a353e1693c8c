// A library to preload before the CUDA runtime and NCCL that provides fake GPUs on a machine without any. Work is done
// when it is enqueued, and every operation takes kLatency + bytes * kSecondsPerByte of its stream's fake time. The
// library ends the program if a buffer overruns, a thread is on the wrong device, or ranks make calls that do not
// match. It therefore checks our calls; it cannot show that the real libraries accept them.
// The address sanitizer refuses to start after another library unless ASAN_OPTIONS has verify_asan_link_order=0, as in
// the test presets. Nothing here replaces what the sanitizer does.
//   FAKE_GPUS    number of GPUs (default: 1)
//   FAKE_MEMORY  largest allocation in bytes (default: no limit)
//   FAKE_FAILURE rank whose all-reduces fail (default: none)
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace {

constexpr double kLatency = 0x1p-17;
constexpr double kSecondsPerByte = 0x1p-33;

struct Stream {
  double now = 0;
};
struct Event {
  double at = -1;
};
struct Communicator {
  int group;
  int rank;
  int ranks;
  int device;
};
/// Where the ranks of one group meet for a collective.
struct Meeting {
  std::vector<std::string> calls;
  long round = 0;
};
struct Message {
  bool sent;
  int peer;
  Communicator* communicator;
  std::size_t bytes;
  Stream* stream;
};

std::mutex mutex;
std::condition_variable changed;
std::map<const char*, std::size_t> blocks;
std::set<const char*> pinned;  // of them
std::map<int, Meeting> meetings;
std::map<std::tuple<int, int, int>, long> sent, received;  // by group, from, to
int groups = 0;
std::atomic<bool> failed = false;
thread_local int device = 0;
thread_local int depth = 0;
thread_local std::vector<Message> grouped;

long setting(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atol(text) : otherwise;
}

void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "fake GPUs: %s\n", what.c_str());
  std::_Exit(70);
}

void expect_inside(const void* begin, std::size_t bytes, const std::string& call) {
  const std::lock_guard lock(mutex);
  const auto* first = static_cast<const char*>(begin);
  const auto after = blocks.upper_bound(first);
  expect(after != blocks.begin(), call + " outside of all memory");
  const auto& [start, length] = *std::prev(after);
  expect(first + bytes <= start + length, call + " overruns its memory");
}

/// Copies from other memory of the host block the host.
void expect_pinned(const void* begin, bool wanted, const std::string& what) {
  const std::lock_guard lock(mutex);
  const auto& [start, length] = *std::prev(blocks.upper_bound(static_cast<const char*>(begin)));
  expect(pinned.contains(start) == wanted, what);
}

template <class Condition>
void wait_until(std::unique_lock<std::mutex>& lock, const std::string& call, Condition condition) {
  expect(changed.wait_for(lock, std::chrono::seconds(30), [&] { return failed || condition(); }), call + " hangs");
}

void pass(cudaStream_t stream, std::size_t bytes) {
  reinterpret_cast<Stream*>(stream)->now += kLatency + static_cast<double>(bytes) * kSecondsPerByte;
}

ncclResult_t meet(ncclComm_t handle, const std::string& call) {
  const auto& own = *reinterpret_cast<Communicator*>(handle);
  expect(own.device == device, call + " on another device");
  std::unique_lock lock(mutex);
  Meeting& meeting = meetings[own.group];
  meeting.calls.push_back(call);
  expect(meeting.calls.front() == call, call + " beside " + meeting.calls.front());
  if (const long round = meeting.round; static_cast<int>(meeting.calls.size()) < own.ranks) {
    wait_until(lock, call, [&] { return meeting.round != round; });
  } else {
    meeting.calls.clear();
    ++meeting.round;
    changed.notify_all();
  }
  return ncclSuccess;
}

/// Runs the messages of an NCCL group together: all are posted, then each waits for its other end.
ncclResult_t flush() {
  const auto key = [](const Message& m) {
    const auto& c = *m.communicator;
    return m.sent ? std::tuple(c.group, c.rank, m.peer) : std::tuple(c.group, m.peer, c.rank);
  };
  std::unique_lock lock(mutex);
  std::vector<long> order;
  for (const Message& message : grouped) order.push_back(++(message.sent ? sent : received)[key(message)]);
  changed.notify_all();
  std::map<Stream*, std::size_t> bytes;  // of the longest message
  for (std::size_t i = 0; i < grouped.size(); ++i) {
    const Message& message = grouped[i];
    wait_until(lock, message.sent ? "ncclSend" : "ncclRecv",
               [&] { return (message.sent ? received : sent)[key(message)] >= order[i]; });
    bytes[message.stream] = std::max(bytes[message.stream], message.bytes);
  }
  for (const auto& [stream, most] : bytes) pass(reinterpret_cast<cudaStream_t>(stream), most);
  grouped.clear();
  return ncclSuccess;
}

ncclResult_t message(bool out, const void* values, std::size_t count, int peer, ncclComm_t handle,
                     cudaStream_t stream) {
  auto* own = reinterpret_cast<Communicator*>(handle);
  const std::string call = out ? "ncclSend" : "ncclRecv";
  expect(own->device == device, call + " on another device");
  expect(peer >= 0 && peer < own->ranks, call + " with a peer that is not there");
  expect_inside(values, count * sizeof(float), call);
  grouped.push_back({out, peer, own, count * sizeof(float), reinterpret_cast<Stream*>(stream)});
  return depth == 0 ? flush() : ncclSuccess;
}

cudaError_t allocate(void** out, std::size_t bytes) {
  if (static_cast<long>(bytes) > setting("FAKE_MEMORY", 1L << 40)) return cudaErrorMemoryAllocation;
  *out = std::malloc(bytes);
  const std::lock_guard lock(mutex);
  blocks[static_cast<const char*>(*out)] = bytes;
  return cudaSuccess;
}

cudaError_t release(void* memory) {
  const std::lock_guard lock(mutex);
  expect(blocks.erase(static_cast<const char*>(memory)) == 1, "memory is freed that was not allocated");
  std::free(memory);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  expect(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") != nullptr, "CUDA starts with its default number of queues");
  *count = static_cast<int>(setting("FAKE_GPUS", 1));
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* out) {
  *out = device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int wanted) {
  if (wanted < 0 || wanted >= setting("FAKE_GPUS", 1)) return cudaErrorInvalidDevice;
  device = wanted;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int) {
  std::snprintf(out->name, sizeof out->name, "fake GPU");
  out->totalGlobalMem = std::size_t{16} << 30;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaMalloc(void** out, std::size_t bytes) { return allocate(out, bytes); }
cudaError_t cudaFree(void* memory) { return release(memory); }
cudaError_t cudaHostAlloc(void** out, std::size_t bytes, unsigned) {
  const cudaError_t status = allocate(out, bytes);
  const std::lock_guard lock(mutex);
  if (status == cudaSuccess) pinned.insert(static_cast<const char*>(*out));
  return status;
}
cudaError_t cudaFreeHost(void* memory) {
  {
    const std::lock_guard lock(mutex);
    expect(pinned.erase(static_cast<const char*>(memory)) == 1, "cudaFreeHost of memory that is not pinned");
  }
  return release(memory);
}
cudaError_t cudaMemsetAsync(void* memory, int, std::size_t bytes, cudaStream_t) {
  expect_inside(memory, bytes, "cudaMemsetAsync");
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  expect_inside(to, bytes, "cudaMemcpyAsync");
  expect_inside(from, bytes, "cudaMemcpyAsync");
  expect_pinned(from, kind == cudaMemcpyHostToDevice, "cudaMemcpyAsync from memory of the wrong kind");
  expect_pinned(to, kind == cudaMemcpyDeviceToHost, "cudaMemcpyAsync to memory of the wrong kind");
  pass(stream, bytes);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  *out = reinterpret_cast<cudaStream_t>(std::make_unique<Stream>().release());
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::unique_ptr<Stream> own(reinterpret_cast<Stream*>(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) { return failed ? cudaErrorNotReady : cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  *out = reinterpret_cast<cudaEvent_t>(std::make_unique<Event>().release());
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::unique_ptr<Event> own(reinterpret_cast<Event*>(event));
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  reinterpret_cast<Event*>(event)->at = reinterpret_cast<Stream*>(stream)->now;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  auto& now = reinterpret_cast<Stream*>(stream)->now;
  now = std::max(now, reinterpret_cast<Event*>(event)->at);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* most) {
  *least = 0;
  *most = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int) {
  return cudaStreamCreateWithFlags(out, flags);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t last) {
  const double begin = reinterpret_cast<Event*>(first)->at;
  const double end = reinterpret_cast<Event*>(last)->at;
  expect(begin >= 0 && end >= begin, "cudaEventElapsedTime of events that were not recorded in this order");
  *milliseconds = static_cast<float>((end - begin) * 1e3);
  return cudaSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex);
  std::memset(id->internal, 0, sizeof id->internal);
  ++groups;
  std::memcpy(id->internal, &groups, sizeof groups);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const bool edge = std::string(config->commName).starts_with("messages");
  expect(config->maxCTAs == (edge ? 2 : NCCL_CONFIG_UNDEF_INT), "a communicator with another limit of thread blocks");
  expect(ranks == 1 || depth > 0, "communicators of one process outside a group");
  int group = 0;
  std::memcpy(&group, id.internal, sizeof group);
  *out =
      reinterpret_cast<ncclComm_t>(std::make_unique<Communicator>(Communicator{group, rank, ranks, device}).release());
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  const std::unique_ptr<Communicator> own(reinterpret_cast<Communicator*>(communicator));
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* out) {
  *out = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() { return --depth == 0 ? flush() : ncclSuccess; }
ncclResult_t ncclSend(const void* values, std::size_t count, ncclDataType_t, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return message(true, values, count, peer, communicator, stream);
}
ncclResult_t ncclRecv(void* values, std::size_t count, ncclDataType_t, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return message(false, values, count, peer, communicator, stream);
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t, ncclRedOp_t,
                           ncclComm_t communicator, cudaStream_t stream) {
  if (reinterpret_cast<Communicator*>(communicator)->rank == setting("FAKE_FAILURE", -1)) {
    failed = true;
    changed.notify_all();
    return ncclSystemError;
  }
  expect_inside(from, count * sizeof(float), "ncclAllReduce");
  expect_inside(to, count * sizeof(float), "ncclAllReduce");
  pass(stream, count * sizeof(float));
  return meet(communicator, "ncclAllReduce of " + std::to_string(count));
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t share, ncclDataType_t, ncclComm_t communicator,
                           cudaStream_t stream) {
  const auto& own = *reinterpret_cast<Communicator*>(communicator);
  const std::size_t bytes = share * sizeof(float);
  const auto ranks = static_cast<std::size_t>(own.ranks);
  expect_inside(from, bytes, "ncclAllGather");
  expect_inside(to, bytes * ranks, "ncclAllGather");
  expect(ranks == 1 || from == static_cast<char*>(to) + bytes * static_cast<std::size_t>(own.rank),
         "ncclAllGather is not in place");
  pass(stream, bytes * ranks);
  return meet(communicator, "ncclAllGather of " + std::to_string(share));
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t share, ncclDataType_t, ncclRedOp_t,
                               ncclComm_t communicator, cudaStream_t stream) {
  const auto& own = *reinterpret_cast<Communicator*>(communicator);
  const std::size_t bytes = share * sizeof(float);
  const auto ranks = static_cast<std::size_t>(own.ranks);
  expect_inside(from, bytes * ranks, "ncclReduceScatter");
  expect_inside(to, bytes, "ncclReduceScatter");
  expect(ranks == 1 || to == static_cast<const char*>(from) + bytes * static_cast<std::size_t>(own.rank),
         "ncclReduceScatter is not in place");
  pass(stream, bytes * ranks);
  return meet(communicator, "ncclReduceScatter of " + std::to_string(share));
}

}  // extern "C"
