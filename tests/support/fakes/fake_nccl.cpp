// To be linked before the CUDA runtime and NCCL: streams, events and communicators of a machine without a GPU. Memory
// is the host's. A stream is a thread that does what was enqueued, one piece of work after the other; the default
// stream is the calling thread, or the stream of its FakeCompute. A thread that creates communicators stands for a
// process. NCCL's rules are kept at their strictest:
//   - Communicators don't block: every call returns "in progress", and a thread of its own enqueues the work a little
//     later, as in NCCL. The next poll joins that thread without a lock, so two threads inside one communicator break a
//     rule.
//   - A transfer and its counterpart end together, in the order of their communicator; nothing is buffered. The calls
//   of
//     a group are one piece of work and end together; both ends must group alike.
//   - An abort tells only this rank's transfers to end, and then waits for the communicator's stream; inside a group,
//   the
//     waiting comes at the end of the group.
//   - With NCCL_LAUNCH_ORDER_IMPLICIT=1, transfers of one process run one after the other in the order of their calls.
// What breaks a rule is noted as an offence. A wait that nothing will end is one, too: after kPatience everything is
// let go. The library shows what our calls say, in which order and on which streams; it cannot show that the real
// libraries accept them.
#include "tests/support/fakes/fake_nccl.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <thread>

namespace {

using stagecraft::testing::FakeCall;

constexpr std::chrono::seconds kPatience{20};
constexpr std::chrono::seconds kForever = std::chrono::hours(24);
/// How long a thread stays inside a poll, so that a second one meets it there.
constexpr std::chrono::microseconds kInsidePoll{10};

// One lock for everything: this is about rules.
std::mutex mutex;

/// A condition variable that wakes only those whose condition holds: tens of streams wait, and each change concerns
/// one.
class Changed {
 public:
  enum class Condition {
    Looks,  ///< its condition may be asked by any thread that holds the lock
    Acts,   ///< asking it changes something, which the waiting thread does itself
  };

  /// False if the condition does not hold at the end of that time.
  bool wait_for(std::unique_lock<std::mutex>& lock, std::chrono::seconds longest, std::function<bool()> condition,
                Condition kind = Condition::Looks) {
    const auto end = std::chrono::steady_clock::now() + longest;
    while (!condition()) {
      Waiter waiter{condition, kind, false, {}};
      const auto place = waiters_.insert(waiters_.end(), &waiter);
      const bool woken = waiter.variable.wait_until(lock, end, [&] { return waiter.woken; });
      waiters_.erase(place);
      if (!woken) return condition();
    }
    return true;
  }

  /// Needs the lock.
  void notify_all() {
    for (Waiter* each : waiters_) {
      if (each->woken || (each->kind == Condition::Looks && !each->condition())) continue;
      each->woken = true;
      each->variable.notify_one();
    }
  }

 private:
  struct Waiter {
    const std::function<bool()>& condition;
    Condition kind;
    bool woken;
    std::condition_variable variable;
  };
  std::list<Waiter*> waiters_;
};
Changed changed;
std::vector<FakeCall> calls;
std::vector<std::string> offences;
std::string stalled;
std::string broken;
int communicators = 0;
int ids = 0;
bool let_go = false;
thread_local int device = 0;
thread_local bool recording = false;
thread_local bool connected_only = false;

/// Needs the lock.
void offend(const std::string& text) { offences.push_back(text); }

struct Stream {
  std::deque<std::function<void()>> work;
  bool busy = false;
  bool stop = false;
  std::thread thread;

  Stream() {
    thread = std::thread([this] {
      std::unique_lock lock(mutex);
      while (true) {
        (void)changed.wait_for(lock, kForever, [this] { return stop || !work.empty(); });
        if (work.empty()) return;
        {
          const std::function<void()> next = std::move(work.front());
          work.pop_front();
          busy = true;
          lock.unlock();
          next();
        }
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
      changed.notify_all();
    }
    thread.join();
  }
  [[nodiscard]] bool idle() const { return !busy && work.empty(); }
};

thread_local Stream* compute = nullptr;

Stream* stream_of(cudaStream_t handle) { return handle ? reinterpret_cast<Stream*>(handle) : compute; }

/// Shared with what is enqueued: an event may be destroyed before it has come.
struct Event {
  long recorded = 0;
  long come = 0;
};
using EventHandle = std::shared_ptr<Event>;

/// Memory of a FakeCompute.
struct Block {
  std::size_t bytes = 0;
  bool freed = false;
};
std::map<const char*, Block> blocks;  // by address; freed ones stay until their FakeCompute ends

struct Message {
  const void* from = nullptr;
  std::size_t bytes = 0;
  std::size_t place = 0;    // in its group, among the messages to its receiver
  std::size_t grouped = 0;  // of them
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
  std::set<int> aborted;  ///< ranks; the others hear nothing of it
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> messages;  // by sender and receiver
  std::map<long, Collective> collectives;                                        // by number
};
std::map<int, std::shared_ptr<Group>> groups;  // by unique id

/// What a process has one of: with an implicit launch order, the queue of its transfers.
struct Process {
  bool ordered = false;
  long launched = 0;
  long ended = 0;
};
thread_local std::shared_ptr<Process> process;

struct Operation {
  enum class Kind { Send, Receive, Collect } kind = Kind::Send;
  std::string name;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;
  std::size_t reach = 0;  ///< bytes written at `to`
  int peer = 0;
  long number = 0;
  std::function<void(const Collective&)> finish;
  // While it runs:
  std::shared_ptr<Message> message;
  bool done = false;
};

/// The thread that enqueues a call's work.
struct Job {
  std::thread thread;
  std::atomic<bool> done = false;
};

void run_or_enqueue(cudaStream_t handle, std::function<void()> work) {
  Stream* stream = stream_of(handle);
  if (stream == nullptr) {
    work();
    return;
  }
  const std::lock_guard lock(mutex);
  stream->work.push_back(std::move(work));
  changed.notify_all();
}

/// Waits for `condition`; false, with everything let go, after kPatience.
template <class Condition>
bool wait(std::unique_lock<std::mutex>& lock, const std::string& what, const Condition& condition,
          Changed::Condition kind = Changed::Condition::Looks) {
  if (changed.wait_for(lock, kPatience, [&] { return let_go || condition(); }, kind)) return !let_go;
  offend(what + " never ends");
  let_go = true;
  changed.notify_all();
  return false;
}

/// Needs the lock.
void check_memory(const void* place, std::size_t bytes, const std::string& what) {
  const auto* first = static_cast<const char*>(place);
  auto after = blocks.upper_bound(first);
  if (after == blocks.begin()) return;
  const auto& [begin, block] = *std::prev(after);
  if (first >= begin + block.bytes) return;
  if (first + bytes > begin + block.bytes) offend(what + " overruns its memory");
  if (block.freed) offend(what + " uses memory that was freed");
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Group> group;
  int rank = 0;
  std::shared_ptr<Process> owner;
  cudaStream_t stream = nullptr;  // of its first call
  int inside = 0;                 // threads
  long collectives = 0;
  std::set<std::pair<std::string, std::size_t>> connected;  // operations and bytes
  std::vector<Operation> grouped;
  std::unique_ptr<Job> job;
};

namespace {

thread_local int group_depth = 0;
thread_local std::vector<ncclComm_t> group_members;
thread_local std::vector<ncclComm_t> group_aborts;

std::string name_of(const ncclComm& own) { return own.group->name + ", rank " + std::to_string(own.rank); }

/// A thread inside a communicator.
class Inside {
 public:
  Inside(ncclComm_t own, const std::string& call) : own_(own) {
    const std::lock_guard lock(mutex);
    if (own->inside++ > 0) offend(name_of(*own) + ": " + call + " while another thread is inside");
  }
  ~Inside() {
    const std::lock_guard lock(mutex);
    --own_->inside;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  ncclComm_t own_;
};

/// The place of an operation among those of its group with its kind and peer, and how many they are.
std::pair<std::size_t, std::size_t> place_of(const std::vector<Operation>& operations, std::size_t i) {
  const auto alike = [&](const Operation& other) {
    return other.kind == operations[i].kind && other.peer == operations[i].peer;
  };
  const auto own = operations.begin() + static_cast<std::ptrdiff_t>(i);
  return {static_cast<std::size_t>(std::count_if(operations.begin(), own, alike)),
          static_cast<std::size_t>(std::ranges::count_if(operations, alike))};
}

/// Tries to go on with all operations; true when all are done. Needs the lock.
bool progress(Group& group, int rank, std::vector<Operation>& operations) {
  if (stalled == group.name) return false;
  bool all = true;
  std::set<int> blocked;  // peers whose next message is not there
  for (std::size_t i = 0; i < operations.size(); ++i) {
    Operation& each = operations[i];
    if (each.done) continue;
    const std::string what = group.name + ", rank " + std::to_string(rank) + ": " + each.name;
    if (each.kind == Operation::Kind::Send) {
      each.done = each.message->taken;
    } else if (each.kind == Operation::Kind::Receive) {
      auto& waiting = group.messages[{each.peer, rank}];
      if (!blocked.contains(each.peer) && !waiting.empty() && !group.aborted.contains(each.peer)) {
        const auto message = waiting.front();
        waiting.pop_front();
        if (message->bytes != each.bytes) {
          offend(group.name + ": a receive of " + std::to_string(each.bytes) + " bytes meets a send of " +
                 std::to_string(message->bytes));
        } else {
          check_memory(message->from, message->bytes, what + "'s sender");
          check_memory(each.to, each.bytes, what);
          std::memcpy(each.to, message->from, each.bytes);
        }
        const auto [place, grouped] = place_of(operations, i);
        if (message->place != place || message->grouped != grouped)
          offend(what + " is grouped otherwise than its send");
        message->taken = each.done = true;
        changed.notify_all();
      } else {
        blocked.insert(each.peer);
      }
    } else {
      Collective& collective = group.collectives[each.number];
      if (!collective.done && group.aborted.empty() && static_cast<int>(collective.members.size()) == group.ranks) {
        each.finish(collective);
        collective.done = true;
        changed.notify_all();
      }
      each.done = collective.done;
    }
    if (each.done && each.kind != Operation::Kind::Receive) {
      check_memory(each.from, each.bytes, what);
      if (each.to) check_memory(each.to, each.reach, what);
    }
    all = all && each.done;
  }
  return all;
}

/// One kernel: all operations of a group, on their stream.
void run_kernel(Group& group, int rank, Process& owner, long ticket, std::vector<Operation>& operations) {
  std::unique_lock lock(mutex);
  const std::string what = group.name + ", rank " + std::to_string(rank) + ": " + operations.front().name;
  const auto aborted = [&] { return group.aborted.contains(rank); };
  if (!owner.ordered || wait(lock, what, [&] { return aborted() || owner.ended == ticket; })) {
    for (std::size_t i = 0; i < operations.size(); ++i) {
      Operation& each = operations[i];
      if (each.kind == Operation::Kind::Send) {
        const auto [place, grouped] = place_of(operations, i);
        each.message = std::make_shared<Message>(Message{each.from, each.bytes, place, grouped, false});
        group.messages[{rank, each.peer}].push_back(each.message);
      } else if (each.kind == Operation::Kind::Collect) {
        Collective& collective = group.collectives[each.number];
        const std::string call = each.name + " of " + std::to_string(each.bytes) + " bytes";
        if (collective.members.empty()) collective.call = call;
        if (collective.call != call) {
          offend(group.name + ": " + call + " by rank " + std::to_string(rank) + " meets " + collective.call);
        }
        collective.members[rank] = {each.from, each.to};
      }
    }
    changed.notify_all();
    (void)wait(lock, what, [&] { return aborted() || progress(group, rank, operations); }, Changed::Condition::Acts);
  }
  owner.ended = std::max(owner.ended, ticket + 1);
  changed.notify_all();
}

/// Starts the thread that enqueues what the group gathered.
ncclResult_t launch(ncclComm_t own) {
  std::vector<Operation> operations = std::exchange(own->grouped, {});
  if (operations.empty()) return ncclSuccess;
  const Inside inside(own, "a call");
  if (own->job) {
    const std::lock_guard lock(mutex);
    offend(name_of(*own) + ": a call before the last one was found to be done");
    return ncclInvalidUsage;
  }
  own->job = std::make_unique<Job>();
  long ticket = 0;
  {
    const std::lock_guard lock(mutex);
    ticket = own->owner->launched++;
  }
  own->job->thread = std::thread([job = own->job.get(), stream = own->stream, group = own->group, rank = own->rank,
                                  owner = own->owner, ticket, operations = std::move(operations)]() mutable {
    std::this_thread::yield();
    run_or_enqueue(stream, [group, rank, owner, ticket, operations = std::move(operations)]() mutable {
      run_kernel(*group, rank, *owner, ticket, operations);
    });
    job->done = true;
  });
  return ncclInProgress;
}

/// Adds an operation to the group, or launches it if there is none.
ncclResult_t add(ncclComm_t own, cudaStream_t stream, Operation operation) {
  {
    const std::lock_guard lock(mutex);
    const std::string who = name_of(*own) + ": " + operation.name;
    if (static_cast<int>(own->group->joined.size()) < own->group->ranks) offend(who + " before it is ready");
    if (stream == nullptr) offend(who + " on the default stream");
    if (own->stream && own->stream != stream) offend(who + " on another stream than before");
    if (process && own->owner != process) offend(who + " by another process");
    own->stream = stream;
    if (own->connected.emplace(operation.name, operation.bytes).second && connected_only)
      offend(who + " of " + std::to_string(operation.bytes) + " bytes may connect in a step");
    if (recording) calls.push_back({own->group->name, own->rank, operation.name, operation.bytes});
    if (own->group->aborted.contains(own->rank)) return ncclInvalidUsage;
  }
  own->grouped.push_back(std::move(operation));
  if (group_depth == 0) return launch(own);
  if (std::ranges::find(group_members, own) == group_members.end()) group_members.push_back(own);
  return ncclSuccess;
}

/// A collective that reads `bytes` at `from` and writes `reach` bytes at `to`.
ncclResult_t collect(ncclComm_t own, cudaStream_t stream, const std::string& kind, const void* from, std::size_t bytes,
                     void* to, std::size_t reach, std::function<void(const Collective&)> finish) {
  Operation out;
  out.kind = Operation::Kind::Collect;
  out.name = kind;
  out.from = from;
  out.to = to;
  out.bytes = bytes;
  out.reach = reach;
  out.number = own->collectives++;
  out.finish = std::move(finish);
  return add(own, stream, std::move(out));
}

/// A number of 16 bits with the upper half of a float's.
class BFloat16 {
 public:
  explicit BFloat16(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    bits_ = static_cast<std::uint16_t>((all + 0x7fffU + (all >> 16U & 1U)) >> 16U);  // ties to even
  }
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits_} << 16U); }
  friend BFloat16 operator+(BFloat16 a, BFloat16 b) { return BFloat16(static_cast<float>(a) + static_cast<float>(b)); }

 private:
  std::uint16_t bits_ = 0;
};

/// Calls `use` with a value of the C++ type.
template <typename Use>
void with_type(ncclDataType_t type, const Use& use) {
  if (type == ncclFloat) return use(0.0F);
  if (type == ncclDouble) return use(0.0);
  if (type == ncclHalf) return use(_Float16(0));
  if (type == ncclBfloat16) return use(BFloat16(0));
  if (type == ncclUint8) return use(std::uint8_t{0});
  const std::lock_guard lock(mutex);
  offend("a call with type " + std::to_string(type));
}

std::size_t bytes_of(std::size_t count, ncclDataType_t type) {
  with_type(type, [&](auto one) { count *= sizeof one; });
  return count;
}

/// The sum of `count` values of every member from value `begin` on, in the order of the ranks.
template <typename T>
std::vector<T> sum_of(const Collective& all, std::size_t begin, std::size_t count) {
  std::vector<T> sum;
  for (const auto& [rank, buffers] : all.members) {
    const T* const values = static_cast<const T*>(buffers.first) + begin;
    if (sum.empty()) {
      sum.assign(values, values + count);
    } else {
      for (std::size_t i = 0; i < count; ++i) sum[i] = sum[i] + values[i];
    }
  }
  return sum;
}

/// What an abort does after its flag is set: waits for the communicator's threads and stream, and frees it.
void reclaim(ncclComm_t handle) {
  const std::unique_ptr<ncclComm> own(handle);
  if (own->job) own->job->thread.join();
  std::unique_lock lock(mutex);
  if (own->inside > 0) offend(name_of(*own) + ": aborted while another thread is inside");
  if (own->stream) {
    const auto* stream = reinterpret_cast<Stream*>(own->stream);
    (void)wait(lock, name_of(*own) + ": ncclCommAbort", [&] { return stream->idle(); });
  }
  --communicators;
  changed.notify_all();
}

}  // namespace

namespace stagecraft::testing {

void record_fake_calls() { recording = true; }
void require_connected_fake() { connected_only = true; }
std::vector<FakeCall> take_fake_calls() {
  const std::lock_guard lock(mutex);
  return std::exchange(calls, {});
}
void stall_fake(const std::string& name) {
  const std::lock_guard lock(mutex);
  stalled = name;
  changed.notify_all();
}
void break_fake(const std::string& name) {
  const std::lock_guard lock(mutex);
  broken = name;
}
int fake_communicators() {
  const std::lock_guard lock(mutex);
  return communicators;
}
std::vector<std::string> fake_violations() {
  const std::lock_guard lock(mutex);
  let_go = false;
  return std::exchange(offences, {});
}

struct FakeCompute::State {
  Stream stream;
  std::map<void*, std::unique_ptr<char[]>> memory;
};
FakeCompute::FakeCompute() : state_(std::make_unique<State>()) { compute = &state_->stream; }
FakeCompute::~FakeCompute() {
  synchronize();
  compute = nullptr;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [place, bytes] : state_->memory) blocks.erase(static_cast<const char*>(place));
  }
}
void FakeCompute::synchronize() {
  std::unique_lock lock(mutex);
  (void)wait(lock, "compute", [&] { return state_->stream.idle(); });
}
void FakeCompute::launch(std::function<void()> kernel) { run_or_enqueue(nullptr, std::move(kernel)); }
void* FakeCompute::allocate(std::size_t bytes) {
  auto memory = std::make_unique<char[]>(std::max<std::size_t>(bytes, 1));
  void* const place = memory.get();
  state_->memory.emplace(place, std::move(memory));
  const std::lock_guard lock(mutex);
  blocks[static_cast<const char*>(place)] = {bytes, false};
  return place;
}
void FakeCompute::free_memory(void* memory) {
  launch([place = static_cast<const char*>(memory)] {
    const std::lock_guard lock(mutex);
    if (const auto it = blocks.find(place); it != blocks.end()) it->second.freed = true;
  });
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
  const Stream* stream = stream_of(handle);
  const std::lock_guard lock(mutex);
  return stream == nullptr || stream->idle() ? cudaSuccess : cudaErrorNotReady;
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
    (void)wait(lock, "an event", [&] { return event->come >= wanted; });
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
  if (!process) {
    process = std::make_shared<Process>();
    const char* order = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    process->ordered = order && std::string(order) == "1";
  }
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
  auto made = std::make_unique<ncclComm>();
  made->group = group;
  made->rank = rank;
  made->owner = process;
  *out = made.release();
  ++communicators;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t own, ncclResult_t* out) {
  const Inside inside(own, "a poll");
  std::this_thread::sleep_for(kInsidePoll);
  if (own->job) {
    if (!own->job->done) {
      *out = ncclInProgress;
      return ncclSuccess;
    }
    own->job->thread.join();
    own->job.reset();
  }
  const std::lock_guard lock(mutex);
  const Group& group = *own->group;
  *out = static_cast<int>(group.joined.size()) < group.ranks ? ncclInProgress
         : group.name == broken                              ? ncclRemoteError
                                                             : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t own) {
  {
    const std::lock_guard lock(mutex);
    own->group->aborted.insert(own->rank);
    changed.notify_all();
  }
  if (group_depth > 0) {
    group_aborts.push_back(own);
    return ncclSuccess;
  }
  reclaim(own);
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) { return result == ncclRemoteError ? "remote error" : "error"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  for (const ncclComm_t own : std::exchange(group_aborts, {})) reclaim(own);
  ncclResult_t out = ncclSuccess;
  for (const ncclComm_t own : std::exchange(group_members, {})) {
    const ncclResult_t one = launch(own);
    if (out == ncclSuccess || one > ncclSuccess) out = one;
  }
  return out;
}

ncclResult_t ncclSend(const void* values, std::size_t count, ncclDataType_t type, int peer, ncclComm_t own,
                      cudaStream_t stream) {
  Operation out;
  out.kind = Operation::Kind::Send;
  out.name = "send";
  out.from = values;
  out.bytes = bytes_of(count, type);
  out.peer = peer;
  return add(own, stream, std::move(out));
}
ncclResult_t ncclRecv(void* values, std::size_t count, ncclDataType_t type, int peer, ncclComm_t own,
                      cudaStream_t stream) {
  Operation out;
  out.kind = Operation::Kind::Receive;
  out.name = "receive";
  out.to = values;
  out.bytes = out.reach = bytes_of(count, type);
  out.peer = peer;
  return add(own, stream, std::move(out));
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t own, cudaStream_t stream) {
  const std::size_t bytes = bytes_of(count, type);
  return collect(own, stream, "all-reduce", from, bytes, to, bytes, [count, type](const Collective& all) {
    with_type(type, [&](auto zero) {
      const auto sum = sum_of<decltype(zero)>(all, 0, count);
      for (const auto& [rank, buffers] : all.members)
        std::copy(sum.begin(), sum.end(), static_cast<decltype(zero)*>(buffers.second));
    });
  });
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t own, cudaStream_t stream) {
  const std::size_t bytes = bytes_of(count, type);
  const auto ranks = static_cast<std::size_t>(own->group->ranks);
  return collect(own, stream, "reduce-scatter", from, bytes * ranks, to, bytes, [count, type](const Collective& all) {
    with_type(type, [&](auto zero) {
      std::size_t begin = 0;
      for (const auto& [rank, buffers] : all.members) {
        const auto sum = sum_of<decltype(zero)>(all, begin, count);
        std::copy(sum.begin(), sum.end(), static_cast<decltype(zero)*>(buffers.second));
        begin += count;
      }
    });
  });
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t own,
                           cudaStream_t stream) {
  const std::size_t bytes = bytes_of(count, type);
  const auto ranks = static_cast<std::size_t>(own->group->ranks);
  return collect(own, stream, "all-gather", from, bytes, to, bytes * ranks, [bytes](const Collective& all) {
    for (const auto& [rank, mine] : all.members) {
      auto* place = static_cast<char*>(mine.second);
      for (const auto& [other, buffers] : all.members) {
        if (place != buffers.first) std::memcpy(place, buffers.first, bytes);  // else in place
        place += bytes;
      }
    }
  });
}

}  // extern "C"
