#include "executor/channel/channel_local.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/DimVector.h>
#include <c10/core/Event.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory_resource>
#include <mutex>
#include <new>
#include <numeric>
#include <unordered_map>

#include "costmodel/index.h"
#include "executor/channel/channel.h"
#include "executor/channel/collective.h"
#include "executor/channel/control_tags.h"

namespace stagecraft::channel {
namespace {

using Clock = std::chrono::steady_clock;

/// How long a wait polls before it sleeps: about the cost of waking a sleeping thread. It yields at every poll, so that
/// another rank can run if there are more ranks than cores.
constexpr auto kSpin = std::chrono::microseconds(40);

/// Yields until `ready()` or kSpin has passed.
template <typename Ready>
void spin(const Ready& ready) {
  const auto end = Clock::now() + kSpin;
  while (!ready() && Clock::now() < end) sched_yield();
}

/// A tensor in flight. On a GPU, `made` is recorded when the sender's stream has written it.
struct Parcel {
  at::Tensor tensor;
  std::shared_ptr<c10::Event> made;
};

Parcel pack(const at::Tensor& tensor) {
  Parcel out{tensor.detach(), nullptr};
  if (!tensor.is_cpu()) {
    out.made = std::make_shared<c10::Event>(tensor.device().type());
    out.made->record(at::accelerator::getCurrentStream(tensor.device().index()));
  }
  return out;
}

/// The tensor, for this thread's current stream.
at::Tensor unpack(Parcel parcel) {
  if (parcel.made) {
    const c10::Stream stream = at::accelerator::getCurrentStream(parcel.tensor.device().index());
    parcel.made->block(stream);
    // The sender releases it while this stream may still read it.
    parcel.tensor.record_stream(stream);
  }
  return std::move(parcel.tensor);
}

/// What one peer sent to one rank under one tag, by number. Kept until the receive with that number takes it.
struct Mailbox {
  explicit Mailbox(std::pmr::memory_resource* memory) : parcels(memory) {}
  std::pmr::map<std::uint64_t, Parcel> parcels;
  std::uint64_t sent = 0;
  std::uint64_t posted = 0;
};

/// Everything sent to one rank.
struct Inbox {
  std::mutex mutex;
  std::condition_variable arrived;
  bool asleep = false;
  std::atomic<std::uint64_t> arrivals = 0;
  std::pmr::unsynchronized_pool_resource memory;         ///< of the parcels
  std::unordered_map<std::uint64_t, Mailbox> mailboxes;  ///< by sender and tag

  Mailbox& mailbox(int from, int tag) { return mailboxes.try_emplace(edge_key(from, tag), &memory).first->second; }
};

/// Meeting of the members of a collective.
struct Meeting {
  explicit Meeting(std::vector<int> all) : members(std::move(all)), calls(members.size()), rounds(members.size()) {}

  std::vector<int> members;
  std::mutex mutex;
  std::condition_variable complete;
  std::vector<CollectiveCall> calls;  ///< by member
  std::vector<std::uint64_t> rounds;  ///< by member: number of meetings it has joined
  std::size_t present = 0;
  std::atomic<std::uint64_t> round = 0;
  std::string broken;  ///< why there are no further meetings
};

/// State shared by the ranks.
struct World {
  World(int ranks, std::chrono::milliseconds longest)
      : inboxes(to_index(ranks)), activities(to_index(ranks)), memory(to_index(ranks)), deadline(longest) {}

  std::vector<Inbox> inboxes;
  std::vector<Activity> activities;                            ///< by rank
  std::vector<std::pmr::unsynchronized_pool_resource> memory;  ///< by rank, for what its thread creates and destroys
  std::chrono::milliseconds deadline;
  std::mutex mutex;                                               ///< of meetings and reason
  std::map<int, std::vector<std::unique_ptr<Meeting>>> meetings;  ///< by tag
  std::string reason;
  std::atomic<bool> aborted = false;

  void throw_if_aborted() {
    if (!aborted.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex);
    throw meeting::PeerError(reason, meeting::PeerError::Cause::Peer);
  }
};

/// An operation of a rank, in memory that its next operation reuses: there is one per message, and in the steady state
/// none of them allocates. Created and destroyed by the rank's thread.
template <typename Operation, typename Interface>
class Pooled : public Interface {
 public:
  template <typename... Arguments>
  static std::unique_ptr<Operation> make(const std::shared_ptr<World>& world, int rank, Arguments&&... arguments) {
    return std::unique_ptr<Operation>(new (world->memory[to_index(rank)])
                                          Operation(world, rank, std::forward<Arguments>(arguments)...));
  }
  static void* operator new(std::size_t bytes, std::pmr::memory_resource& memory) { return memory.allocate(bytes); }
  /// Reached through the interface's virtual destructor.
  static void operator delete(Pooled* self, std::destroying_delete_t) {
    const std::shared_ptr<World> world = self->world_;
    std::pmr::memory_resource& memory = world->memory[to_index(self->rank_)];
    auto* const operation = static_cast<Operation*>(self);
    operation->~Operation();
    memory.deallocate(operation, sizeof(Operation));
  }

 private:
  friend Operation;
  Pooled(std::shared_ptr<World> world, int rank) : world_(std::move(world)), rank_(rank) {}

 protected:
  std::shared_ptr<World> world_;
  int rank_;
};

class Sent : public Pooled<Sent, Sending> {
 public:
  using Pooled::Pooled;
  bool done() override { return true; }
  void wait() override {}
};

class LocalReceiving : public Pooled<LocalReceiving, Receiving> {
 public:
  LocalReceiving(std::shared_ptr<World> world, int rank, const TensorSpec& spec, int from, int tag)
      : Pooled(std::move(world), rank),
        inbox_(world_->inboxes[to_index(rank)]),
        shape_(spec.shape.begin(), spec.shape.end()),
        dtype_(spec.dtype),
        from_(from),
        tag_(tag) {
    const std::lock_guard lock(inbox_.mutex);
    mailbox_ = &inbox_.mailbox(from, tag);
    number_ = mailbox_->posted++;
  }

  at::Tensor wait() override {
    at::Tensor tensor = unpack(take());
    if (tensor.sizes() != at::IntArrayRef(shape_) || tensor.scalar_type() != dtype_)
      throw wrong_spec(rank_, {{shape_.begin(), shape_.end()}, dtype_}, from_, tag_, spec_of(tensor));
    return tensor;
  }

 private:
  Parcel take() {
    std::uint64_t seen = inbox_.arrivals.load(std::memory_order_acquire);
    if (auto parcel = look()) return *std::move(parcel);
    const auto end = Clock::now() + world_->deadline;
    for (auto stop = Clock::now() + kSpin; Clock::now() < stop; sched_yield()) {
      const std::uint64_t now = inbox_.arrivals.load(std::memory_order_acquire);
      if (now == seen) continue;
      seen = now;
      if (auto parcel = look()) return *std::move(parcel);
    }
    Activity& activity = world_->activities[to_index(rank_)];
    activity.wait_for(from_, tag_);
    std::unique_lock lock(inbox_.mutex);
    while (true) {
      world_->throw_if_aborted();
      if (auto node = mailbox_->parcels.extract(number_)) {
        activity.go_on();
        return std::move(node.mapped());
      }
      if (Clock::now() >= end) throw late_tensor(rank_, world_->deadline, from_, tag_);
      inbox_.asleep = true;
      inbox_.arrived.wait_until(lock, end);
      inbox_.asleep = false;
    }
  }

  std::optional<Parcel> look() {
    world_->throw_if_aborted();
    const std::lock_guard lock(inbox_.mutex);
    auto node = mailbox_->parcels.extract(number_);
    if (!node) return std::nullopt;
    return std::move(node.mapped());
  }

  Inbox& inbox_;
  Mailbox* mailbox_;
  at::DimVector shape_;
  at::ScalarType dtype_;
  int from_;
  int tag_;
  std::uint64_t number_;
};

/// Joins the meeting as member `mine`, with a call unless it is null, and returns how many times this member has
/// joined.
std::uint64_t come(World& world, Meeting& meeting, std::size_t mine, const CollectiveCall* call) {
  world.throw_if_aborted();
  const std::lock_guard lock(meeting.mutex);
  if (!meeting.broken.empty()) throw meeting::PeerError(meeting.broken, meeting::PeerError::Cause::Deadline);
  if (call) meeting.calls[mine] = *call;
  const std::uint64_t round = ++meeting.rounds[mine];
  if (++meeting.present == meeting.members.size()) {
    meeting.present = 0;
    meeting.round.store(round, std::memory_order_release);
    meeting.complete.notify_all();
  }
  return round;
}

/// Returns when all members have joined `round` times; `what()` names the operation.
template <typename What>
void await(World& world, Meeting& meeting, int rank, std::uint64_t round, int tag, const What& what) {
  const std::vector<int>& members = meeting.members;
  const auto over = [&] { return meeting.round.load(std::memory_order_acquire) >= round; };
  spin(over);
  if (over()) return;
  const auto end = Clock::now() + world.deadline;
  Activity& activity = world.activities[to_index(rank)];
  std::unique_lock lock(meeting.mutex);
  const auto is_absent = [&](std::size_t i) { return meeting.rounds[i] < round; };
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (!is_absent(i)) continue;
    activity.wait_for(members[i], tag);
    break;
  }
  while (!over()) {
    if (world.aborted) {
      lock.unlock();
      world.throw_if_aborted();
    }
    if (!meeting.broken.empty()) throw meeting::PeerError(meeting.broken, meeting::PeerError::Cause::Deadline);
    if (Clock::now() >= end) {
      std::vector<int> absent;
      for (std::size_t i = 0; i < members.size(); ++i) {
        if (is_absent(i)) absent.push_back(members[i]);
      }
      meeting.broken = fmt::format("rank {} waited {} for {} {}", rank, meeting::seconds_text(world.deadline),
                                   meeting::name_ranks(absent), what());
      meeting.complete.notify_all();
      throw meeting::PeerError(meeting.broken, meeting::PeerError::Cause::Deadline);
    }
    meeting.complete.wait_until(lock, end);
  }
  activity.go_on();
}

/// Where part `i` of a tensor with parts of `counts` begins.
std::byte* part_of(const at::Tensor& tensor, const std::vector<std::int64_t>& counts, std::size_t i) {
  const auto begin = std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(i), std::int64_t{0});
  return static_cast<std::byte*>(tensor.data_ptr()) + begin * static_cast<std::int64_t>(tensor.element_size());
}

/// A collective in which each member reads the others' tensors. Of an all-reduce, each member sums one part and writes
/// it into all tensors.
class LocalCollective : public Pooled<LocalCollective, CollectiveInProgress> {
 public:
  LocalCollective(std::shared_ptr<World> world, int rank, Meeting& meeting, const CollectiveCall& call)
      : Pooled(std::move(world), rank),
        meeting_(meeting),
        kind_(call.kind),
        tag_(call.tag),
        mine_(place_of(rank, call)),
        round_(come(*world_, meeting_, mine_, &call)) {}

  void wait() override {
    const auto what = [this] { return fmt::format("in the {} under tag {}", collective_text(kind_), tag_); };
    await(*world_, meeting_, rank_, round_, tag_, what);
    for (std::size_t i = 0; i < meeting_.calls.size(); ++i) check(i);
    if (kind_ == Collective::AllReduce || kind_ == Collective::ReduceScatter) {
      sum_part();
    } else {
      copy_parts();
    }
    await(*world_, meeting_, rank_, come(*world_, meeting_, mine_, nullptr), tag_, what);
    meeting_.calls[mine_].values.reset();
    meeting_.calls[mine_].received.reset();
  }

 private:
  /// What member `from` sends to member `to`: according to `from`, or to `to` if `received`.
  std::int64_t message_count(std::size_t from, std::size_t to, bool received) const {
    const CollectiveCall& call = meeting_.calls[received ? to : from];
    if (kind_ == Collective::AllReduce) return call.values.numel();
    if (kind_ == Collective::AllGather) return call.counts[from];
    return kind_ == Collective::AllToAll && received ? call.received_counts[from] : call.counts[to];
  }

  /// Throws PeerError unless member `i` sends what this rank expects.
  void check(std::size_t i) const {
    const CollectiveCall& theirs = meeting_.calls[i];
    if (theirs.kind != kind_) {
      throw meeting::PeerError(fmt::format("rank {} is in the {} under tag {}, rank {} in the {}", rank_,
                                           collective_text(kind_), tag_, meeting_.members[i],
                                           collective_text(theirs.kind)));
    }
    const at::ScalarType dtype = meeting_.calls[mine_].values.scalar_type();
    const std::int64_t expected = message_count(i, mine_, true);
    const std::int64_t sent = message_count(i, mine_, false);
    if (theirs.values.scalar_type() == dtype && sent == expected) return;
    throw wrong_spec(rank_, {{expected}, dtype}, meeting_.members[i], tag_, {{sent}, theirs.values.scalar_type()});
  }

  /// No other member touches this rank's part.
  void sum_part() const {
    const at::Tensor& own = meeting_.calls[mine_].values;
    const auto members = static_cast<std::int64_t>(meeting_.calls.size());
    const auto place = static_cast<std::int64_t>(mine_);
    const bool all = kind_ == Collective::AllReduce;
    const std::int64_t begin = chunk_begin(own.numel(), place, members);
    const std::int64_t count =
        all ? chunk_begin(own.numel(), place + 1, members) - begin : meeting_.calls[mine_].counts[mine_];
    c10::SmallVector<const void*, 8> terms;
    c10::SmallVector<void*, 8> sums;
    for (std::size_t i = 0; i < meeting_.calls.size(); ++i) {
      const CollectiveCall& call = meeting_.calls[i];
      void* const part = all ? static_cast<std::byte*>(call.values.data_ptr()) + begin * own.element_size()
                             : part_of(call.values, call.counts, mine_);
      terms.push_back(part);
      if (all || i == mine_) sums.push_back(part);
    }
    sum_in_order(own.scalar_type(), terms, sums, to_index(count));
  }

  void copy_parts() const {
    const CollectiveCall& own = meeting_.calls[mine_];
    const bool gathers = kind_ == Collective::AllGather;
    for (std::size_t i = 0; i < meeting_.calls.size(); ++i) {
      if (gathers && i == mine_) continue;
      const CollectiveCall& theirs = meeting_.calls[i];
      const std::byte* const from = part_of(theirs.values, theirs.counts, gathers ? i : mine_);
      std::byte* const to =
          gathers ? part_of(own.values, own.counts, i) : part_of(own.received, own.received_counts, i);
      std::copy_n(from, (gathers ? own.counts[i] : own.received_counts[i]) * own.values.element_size(), to);
    }
  }

  Meeting& meeting_;
  Collective kind_;
  int tag_;
  std::size_t mine_;
  std::uint64_t round_;
};

class LocalChannel : public Channel {
 public:
  LocalChannel(std::shared_ptr<World> world, int rank) : world_(std::move(world)), rank_(rank) {}

  int rank() const override { return rank_; }
  int ranks() const override { return to_int(world_->inboxes.size()); }

  std::unique_ptr<Sending> send(const at::Tensor& tensor, int to, int tag) override {
    check_edge(*this, to, tag);
    check_sendable(tensor);
    world_->throw_if_aborted();
    Inbox& inbox = world_->inboxes[to_index(to)];
    Parcel parcel = pack(tensor);
    bool wake = false;
    {
      const std::lock_guard lock(inbox.mutex);
      Mailbox& mailbox = inbox.mailbox(rank_, tag);
      mailbox.parcels.emplace(mailbox.sent++, std::move(parcel));
      inbox.arrivals.fetch_add(1, std::memory_order_release);
      wake = inbox.asleep;
    }
    if (wake) inbox.arrived.notify_one();
    return Sent::make(world_, rank_);
  }

  std::unique_ptr<Receiving> receive(const TensorSpec& spec, int from, int tag) override {
    check_edge(*this, from, tag);
    world_->throw_if_aborted();
    return LocalReceiving::make(world_, rank_, spec, from, tag);
  }

  void barrier() override {
    Meeting& meeting = find_meeting(all_ranks(*this), kBarrierTag);
    await(*world_, meeting, rank_, come(*world_, meeting, to_index(rank_), nullptr), kBarrierTag,
          [] { return std::string("at a barrier"); });
  }

  Activity& activity() override { return world_->activities[to_index(rank_)]; }

  void abort(const std::string& reason) override {
    {
      const std::lock_guard lock(world_->mutex);
      if (world_->aborted) return;
      world_->reason = reason;
      world_->aborted.store(true, std::memory_order_release);
      for (auto& [tag, meetings] : world_->meetings) {
        for (const auto& meeting : meetings) {
          { const std::lock_guard inner(meeting->mutex); }
          meeting->complete.notify_all();
        }
      }
    }
    for (Inbox& inbox : world_->inboxes) {
      { const std::lock_guard lock(inbox.mutex); }  // a thread that polled before the flag was set is asleep now
      inbox.arrived.notify_all();
    }
  }

 protected:
  std::unique_ptr<CollectiveInProgress> begin(const CollectiveCall& call) override {
    if (!call.values.is_cpu()) return start_pairwise(*this, call, true);  // on a GPU, parts are sent and summed there
    return LocalCollective::make(world_, rank_, find_meeting(call.members, call.tag), call);
  }

 private:
  Meeting& find_meeting(const std::vector<int>& members, int tag) {
    const std::lock_guard lock(world_->mutex);
    auto& under_tag = world_->meetings[tag];
    const auto it =
        std::ranges::find(under_tag, members, [](const auto& meeting) -> const auto& { return meeting->members; });
    if (it != under_tag.end()) return **it;
    return *under_tag.emplace_back(std::make_unique<Meeting>(members));
  }

  std::shared_ptr<World> world_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Channel>> make_local_channels(int ranks, std::chrono::milliseconds deadline) {
  if (ranks < 1) throw std::invalid_argument(fmt::format("a run must have at least 1 rank, got {}", ranks));
  const auto world = std::make_shared<World>(ranks, deadline);
  std::vector<std::unique_ptr<Channel>> channels;
  for (int rank = 0; rank < ranks; ++rank) channels.push_back(std::make_unique<LocalChannel>(world, rank));
  return channels;
}

ChannelKind local_channel() {
  return {
      .name = "local", .help = "ranks are threads of one process", .device = "", .make_threads = make_local_channels};
}

}  // namespace stagecraft::channel
