// To be linked before the CUDA runtime and NCCL: streams, events and communicators for a machine without a GPU. A
// stream is a thread that runs its work in order; the null stream is the calling thread. Transfers follow NCCL's rules
// at their strictest: a send and its receive end together, in the order of their communicator, and nothing is buffered.
// Memory is the host's. A call that breaks a rule is recorded as an offence, and the transfer fails. The library checks
// our calls, their order and their streams; it cannot show that the real libraries accept them.
#include "tests/support/pretended_nccl.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace {

using stagecraft::testing::PretendedCall;

// One lock for everything: only the rules matter, not speed.
std::mutex mutex;
std::condition_variable changed;
std::vector<PretendedCall> calls;
std::vector<std::string> offences;
std::string stalled;
std::string broken;
int communicators = 0;
int ids = 0;
thread_local int device = 0;

struct Stream {
  std::deque<std::function<void()>> work;
  bool busy = false;
  bool stop = false;
  std::thread thread;

  Stream() {
    thread = std::thread([this] {
      std::unique_lock lock(mutex);
      while (true) {
        changed.wait(lock, [this] { return stop || !work.empty(); });
        if (work.empty()) return;
        const std::function<void()> next = std::move(work.front());
        work.pop_front();
        busy = true;
        lock.unlock();
        next();
        lock.lock();
        busy = false;
        changed.notify_all();
      }
    });
  }
  ~Stream() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    thread.join();
  }
};

/// Shared with enqueued work: an event may be destroyed before it completes.
struct Event {
  long recorded = 0;
  long come = 0;
};
using EventHandle = std::shared_ptr<Event>;

struct Message {
  const void* from = nullptr;
  std::size_t bytes = 0;
  bool taken = false;
};

struct Collective {
  std::string call;
  std::map<int, std::pair<const void*, void*>> members;  // by rank
  bool done = false;
};

/// What the ranks of a communicator share.
struct Group {
  std::string name;
  int ranks = 0;
  std::set<int> joined;
  std::set<int> aborted;  ///< ranks that aborted; the others are not informed
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> messages;  // by sender and receiver
  std::map<long, Collective> collectives;                                        // by number
};
std::map<int, std::shared_ptr<Group>> groups;  // by unique id

void run_or_enqueue(cudaStream_t handle, std::function<void()> work) {
  if (handle == nullptr) {
    work();
    return;
  }
  const std::lock_guard lock(mutex);
  reinterpret_cast<Stream*>(handle)->work.push_back(std::move(work));
  changed.notify_all();
}

/// The caller must hold the lock.
void offend(const std::string& text) { offences.push_back(text); }

}  // namespace

struct ncclComm {
  std::shared_ptr<Group> group;
  int rank = 0;
  cudaStream_t stream = nullptr;  // of its first call
  int inside = 0;                 // calls under way
  long collectives = 0;
  long calls = 0;
};

namespace {

/// Registers a call; false if the communicator was aborted.
bool begin(ncclComm_t own, cudaStream_t stream, const std::string& kind, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  const std::string who = own->group->name + ", rank " + std::to_string(own->rank) + ": ";
  if (static_cast<int>(own->group->joined.size()) < own->group->ranks) offend(who + kind + " before it is ready");
  if (stream == nullptr) offend(who + kind + " on the default stream");
  if (own->calls > 0 && own->stream != stream) offend(who + kind + " on another stream than before");
  own->stream = stream;
  if (own->calls++ > 0) calls.push_back({own->group->name, own->rank, kind, bytes});
  return !own->group->aborted.contains(own->rank);
}

/// Waits until `condition` holds and the group is not stalled, or until this rank aborts; false if it did.
template <class Condition>
bool wait_for(std::unique_lock<std::mutex>& lock, const Group& group, int rank, const Condition& condition) {
  changed.wait(lock, [&] { return group.aborted.contains(rank) || (stalled != group.name && condition()); });
  return !group.aborted.contains(rank);
}

ncclResult_t collect(ncclComm_t own, cudaStream_t stream, const std::string& kind, const void* from, void* to,
                     std::size_t count, std::function<void(const Collective&)> finish) {
  if (!begin(own, stream, kind, count * sizeof(float))) return ncclInvalidUsage;
  const long number = own->collectives++;
  run_or_enqueue(stream, [=, group = own->group, rank = own->rank] {
    std::unique_lock lock(mutex);
    Collective& collective = group->collectives[number];
    const std::string call = kind + " of " + std::to_string(count) + " values";
    if (collective.members.empty()) collective.call = call;
    if (collective.call != call) {
      offend(group->name + ": " + call + " by rank " + std::to_string(rank) + " meets " + collective.call);
    }
    collective.members[rank] = {from, to};
    if (static_cast<int>(collective.members.size()) == group->ranks && stalled != group->name) {
      finish(collective);
      collective.done = true;
      changed.notify_all();
    }
    (void)wait_for(lock, *group, rank, [&] { return collective.done; });
  });
  return ncclSuccess;
}

}  // namespace

namespace stagecraft::testing {

std::vector<PretendedCall> take_pretended_calls() {
  const std::lock_guard lock(mutex);
  return std::exchange(calls, {});
}
void stall_pretended(const std::string& name) {
  const std::lock_guard lock(mutex);
  stalled = name;
  changed.notify_all();
}
void break_pretended(const std::string& name) {
  const std::lock_guard lock(mutex);
  broken = name;
}
int pretended_communicators() {
  const std::lock_guard lock(mutex);
  return communicators;
}
std::vector<std::string> pretended_offences() {
  const std::lock_guard lock(mutex);
  return std::exchange(offences, {});
}

}  // namespace stagecraft::testing

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* out) {
  *out = device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int wanted) {
  device = wanted;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* most) {
  *least = 0;
  *most = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int) {
  if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
  *out = reinterpret_cast<cudaStream_t>(std::make_unique<Stream>().release());
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::unique_ptr<Stream> own(reinterpret_cast<Stream*>(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const std::lock_guard lock(mutex);
  const auto* stream = reinterpret_cast<Stream*>(handle);
  return stream == nullptr || (!stream->busy && stream->work.empty()) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
  const EventHandle event = *reinterpret_cast<EventHandle*>(handle);
  long wanted = 0;
  {
    const std::lock_guard lock(mutex);
    wanted = event->recorded;
  }
  run_or_enqueue(stream, [event, wanted] {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return event->come >= wanted; });
  });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  *out = reinterpret_cast<cudaEvent_t>(new EventHandle(std::make_shared<Event>()));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  const std::unique_ptr<EventHandle> own(reinterpret_cast<EventHandle*>(handle));
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  const EventHandle event = *reinterpret_cast<EventHandle*>(handle);
  long number = 0;
  {
    const std::lock_guard lock(mutex);
    number = ++event->recorded;
  }
  run_or_enqueue(stream, [event, number] {
    const std::lock_guard lock(mutex);
    event->come = std::max(event->come, number);
    changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  const std::lock_guard lock(mutex);
  const EventHandle& event = *reinterpret_cast<EventHandle*>(handle);
  return event->come >= event->recorded ? cudaSuccess : cudaErrorNotReady;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex);
  std::memset(id->internal, 0, sizeof id->internal);
  ++ids;
  std::memcpy(id->internal, &ids, sizeof ids);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const std::lock_guard lock(mutex);
  if (config->blocking != 0) offend(std::string(config->commName) + " is made to block");
  int number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  auto& group = groups[number];
  if (!group) {
    group = std::make_shared<Group>();
    group->name = config->commName;
    group->ranks = ranks;
  }
  if (group->name != config->commName || group->ranks != ranks || rank >= ranks || !group->joined.insert(rank).second)
    offend(group->name + " joined as " + config->commName + ", rank " + std::to_string(rank));
  changed.notify_all();
  *out = std::make_unique<ncclComm>(ncclComm{group, rank}).release();
  ++communicators;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t own, ncclResult_t* out) {
  const std::lock_guard lock(mutex);
  const Group& group = *own->group;
  *out = static_cast<int>(group.joined.size()) < group.ranks ? ncclInProgress
         : group.name == broken                              ? ncclRemoteError
                                                             : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const std::unique_ptr<ncclComm> own(handle);
  {
    const std::lock_guard lock(mutex);
    own->group->aborted.insert(own->rank);
    --communicators;
  }
  changed.notify_all();
  // Enqueued transfers end before the communicator is destroyed.
  if (own->stream) {
    std::unique_lock lock(mutex);
    auto* stream = reinterpret_cast<Stream*>(own->stream);
    changed.wait(lock, [&] { return !stream->busy && stream->work.empty(); });
  }
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) { return result == ncclRemoteError ? "remote error" : "error"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclSend(const void* values, std::size_t count, ncclDataType_t type, int peer, ncclComm_t own,
                      cudaStream_t stream) {
  const std::size_t bytes = count * (type == ncclUint8 ? 1 : sizeof(float));
  if (!begin(own, stream, "send", bytes)) return ncclInvalidUsage;
  run_or_enqueue(stream, [=, group = own->group, rank = own->rank] {
    std::unique_lock lock(mutex);
    const auto message = std::make_shared<Message>(Message{values, bytes});
    group->messages[{rank, peer}].push_back(message);
    changed.notify_all();
    (void)wait_for(lock, *group, rank, [&] { return message->taken; });
  });
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* values, std::size_t count, ncclDataType_t type, int peer, ncclComm_t own,
                      cudaStream_t stream) {
  const std::size_t bytes = count * (type == ncclUint8 ? 1 : sizeof(float));
  if (!begin(own, stream, "receive", bytes)) return ncclInvalidUsage;
  run_or_enqueue(stream, [=, group = own->group, rank = own->rank] {
    std::unique_lock lock(mutex);
    auto& waiting = group->messages[{peer, rank}];
    if (!wait_for(lock, *group, rank, [&] { return !waiting.empty(); })) return;
    const auto message = waiting.front();
    waiting.pop_front();
    if (message->bytes != bytes) {
      offend(group->name + ": a receive of " + std::to_string(bytes) + " bytes meets a send of " +
             std::to_string(message->bytes));
    } else {
      std::memcpy(values, message->from, bytes);
    }
    message->taken = true;
    changed.notify_all();
  });
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t own,
                           cudaStream_t stream) {
  return collect(own, stream, "all-reduce", from, to, count, [count](const Collective& all) {
    std::vector<float> sum;
    for (const auto& [rank, buffers] : all.members) {
      const auto* values = static_cast<const float*>(buffers.first);
      if (sum.empty()) {
        sum.assign(values, values + count);
      } else {
        for (std::size_t i = 0; i < count; ++i) sum[i] += values[i];
      }
    }
    for (const auto& [rank, buffers] : all.members)
      std::copy(sum.begin(), sum.end(), static_cast<float*>(buffers.second));
  });
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t, ncclComm_t own,
                           cudaStream_t stream) {
  return collect(own, stream, "all-gather", from, to, count, [count](const Collective& all) {
    for (const auto& [rank, mine] : all.members) {
      std::size_t place = 0;
      for (const auto& [other, buffers] : all.members) {
        std::memcpy(static_cast<float*>(mine.second) + count * place++, buffers.first, count * sizeof(float));
      }
    }
  });
}

}  // extern "C"
