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
#include <unordered_map>

#include "costmodel/index.h"
#include "executor/channel/channel_checks.h"
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

/// Meeting of the members of an all-reduce.
struct Meeting {
  explicit Meeting(std::vector<int> all) : members(std::move(all)), values(members.size()), rounds(members.size()) {}

  std::vector<int> members;
  std::mutex mutex;
  std::condition_variable complete;
  std::vector<at::Tensor> values;     ///< by member
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

/// Adds `values` to the meeting as member `mine`, and returns how many times this member has joined.
std::uint64_t come(World& world, Meeting& meeting, const std::vector<int>& members, std::size_t mine,
                   std::optional<at::Tensor> values) {
  world.throw_if_aborted();
  const std::lock_guard lock(meeting.mutex);
  if (!meeting.broken.empty()) throw meeting::PeerError(meeting.broken, meeting::PeerError::Cause::Deadline);
  if (values) meeting.values[mine] = *std::move(values);
  const std::uint64_t round = ++meeting.rounds[mine];
  if (++meeting.present == members.size()) {
    meeting.present = 0;
    meeting.round.store(round, std::memory_order_release);
    meeting.complete.notify_all();
  }
  return round;
}

/// Returns when all members have joined `round` times; `what()` names the operation.
template <typename What>
void await(World& world, Meeting& meeting, const std::vector<int>& members, int rank, std::uint64_t round, int tag,
           const What& what) {
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

/// Replaces chunk `mine` of every member's values by its sum in member order. No other member touches that chunk.
void sum_chunk(const std::vector<at::Tensor>& values, std::size_t mine) {
  const auto n = static_cast<std::int64_t>(values.size());
  const std::int64_t numel = values[0].numel();
  const std::int64_t end = numel * (static_cast<std::int64_t>(mine) + 1) / n;
  c10::SmallVector<float*, 8> data(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) data[i] = static_cast<float*>(values[i].data_ptr());
  constexpr std::int64_t kBlock = 2048;  // stays in the first-level cache
  float sum[kBlock];
  for (std::int64_t at = numel * static_cast<std::int64_t>(mine) / n; at < end; at += kBlock) {
    const std::int64_t count = std::min(kBlock, end - at);
    std::copy_n(data[0] + at, count, sum);
    for (std::size_t i = 1; i < data.size(); ++i) {
      const float* in = data[i] + at;
      for (std::int64_t k = 0; k < count; ++k) sum[k] += in[k];
    }
    for (float* out : data) std::copy_n(sum, count, out + at);
  }
}

/// An all-reduce in which each member sums one part in place.
class LocalReducing : public Pooled<LocalReducing, Reducing> {
 public:
  LocalReducing(std::shared_ptr<World> world, int rank, Meeting& meeting, int tag, const at::Tensor& values)
      : Pooled(std::move(world), rank),
        meeting_(meeting),
        members_(meeting.members),
        tag_(tag),
        mine_(to_index(std::find(members_.begin(), members_.end(), rank) - members_.begin())),
        round_(come(*world_, meeting_, members_, mine_, values.detach())) {}

  void wait() override {
    const auto what = [this] { return fmt::format("in an all-reduce under tag {}", tag_); };
    await(*world_, meeting_, members_, rank_, round_, tag_, what);
    const std::vector<at::Tensor>& values = meeting_.values;
    for (std::size_t i = 1; i < members_.size(); ++i) {
      if (values[i].numel() == values[0].numel()) continue;
      throw meeting::PeerError(fmt::format("rank {} has {} values for the all-reduce under tag {}, rank {} has {}",
                                           members_[i], values[i].numel(), tag_, members_[0], values[0].numel()));
    }
    sum_chunk(values, mine_);
    await(*world_, meeting_, members_, rank_, come(*world_, meeting_, members_, mine_, std::nullopt), tag_, what);
    meeting_.values[mine_].reset();
  }

 private:
  Meeting& meeting_;
  const std::vector<int>& members_;
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

  std::unique_ptr<Reducing> start_all_reduce(const at::Tensor& values, const std::vector<int>& members,
                                             int tag) override;

  void barrier() override {
    std::vector<int> all(world_->inboxes.size());
    for (int i = 0; i < ranks(); ++i) all[to_index(i)] = i;
    Meeting& meeting = find_meeting(all, kBarrierTag);
    await(*world_, meeting, all, rank_, come(*world_, meeting, all, to_index(rank_), std::nullopt), kBarrierTag,
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

std::unique_ptr<Reducing> LocalChannel::start_all_reduce(const at::Tensor& values, const std::vector<int>& members,
                                                         int tag) {
  check_reducible(*this, values, members, tag);
  // One member has nothing to sum; on a GPU, the parts are sent and summed there.
  if (members.size() == 1 || !values.is_cpu()) return start_ordered_all_reduce(*this, values, members, tag);
  return LocalReducing::make(world_, rank_, find_meeting(members, tag), tag, values);
}

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
