#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/channel/channel_checks.h"
#include "executor/channel/channel_nccl.h"
#include "executor/channel/nccl_communicators.h"
#include "executor/channel/nccl_transfers.h"
#include "executor/meeting/launch_info.h"
#include "executor/meeting/meeting_store.h"

namespace stagecraft::channel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kAbortKey = "abort";
/// Polling interval of the watching thread.
constexpr auto kWatchPeriod = std::chrono::milliseconds(50);
/// Received tensors of one tag that a step holds at a time, as schedules post receives at most so far ahead.
constexpr int kSlotsAtStart = 2;

class NcclChannel : public Channel {
 public:
  NcclChannel(const meeting::LaunchInfo& launch, NcclProgram program, std::unique_ptr<Channel> control,
              c10::Device device, std::chrono::milliseconds deadline, const NcclOptions& options)
      : program_(std::move(program)),
        control_(std::move(control)),
        deadline_(deadline),
        options_(options),
        store_(meeting::connect_store(launch, "nccl", deadline)),
        watch_store_(meeting::connect_store(launch, "nccl", deadline)),
        line_(std::make_shared<NcclLine>()) {
    line_->rank = launch.rank;
    line_->device = device;
    const CurrentGpu guard(device);
    try {
      for (std::size_t c = 0; c < program_.communicators.size(); ++c) {
        const CommunicatorPlan& plan = program_.communicators[c];
        if (std::ranges::find(plan.ranks, launch.rank) != plan.ranks.end()) create(c, plan);
      }
    } catch (...) {
      abort_communicators();
      throw;
    }
    watch_ = std::jthread([this] { watch(); });
  }

  ~NcclChannel() override {
    drain();
    {
      const std::lock_guard lock(watching_);
      stop_ = true;
    }
    changed_.notify_all();
    watch_.join();
    abort_communicators();
  }

  int rank() const override { return line_->rank; }
  int ranks() const override { return control_->ranks(); }

  std::unique_ptr<Sending> send(const at::Tensor& tensor, int to, int tag) override {
    std::vector<std::unique_ptr<Sending>> out;
    send_message({&tensor, 1}, to, {&tag, 1}, out);
    return std::move(out.front());
  }

  void send_message(std::span<const at::Tensor> tensors, int to, std::span<const int> tags,
                    std::vector<std::unique_ptr<Sending>>& out) override {
    NcclLane* const lane = lane_of(out_, to, tags);
    if (!lane) {
      for (std::size_t i = 0; i < tensors.size(); ++i) out.push_back(control_->send(tensors[i], to, tags[i]));
      return;
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      check_edge(*this, to, tags[i]);
      check_sendable(tensors[i]);
      check_device(tensors[i]);
    }
    const auto operation = enqueue(
        *lane, "send", tags.front(), [&](auto& memory) { memory.assign(tensors.begin(), tensors.end()); },
        [&](NcclOperation& own) { order_after_compute(*lane, own); },
        [&] {
          for (const at::Tensor& tensor : tensors) {
            if (tensor.numel() == 0) continue;
            device::check(ncclSend(tensor.const_data_ptr(), tensor.nbytes(), ncclUint8, 1, lane->communicator.get(),
                                   lane->stream.get()),
                          "ncclSend");
          }
        });
    for (const at::Tensor& tensor : tensors)
      out.push_back(std::make_unique<NcclSending>(line_, operation, tensor.detach()));
  }

  std::unique_ptr<Receiving> receive(const TensorSpec& spec, int from, int tag) override {
    std::vector<std::unique_ptr<Receiving>> out;
    receive_message({&spec, 1}, from, {&tag, 1}, out);
    return std::move(out.front());
  }

  void receive_message(std::span<const TensorSpec> specs, int from, std::span<const int> tags,
                       std::vector<std::unique_ptr<Receiving>>& out) override {
    NcclLane* const lane = lane_of(in_, from, tags);
    if (!lane) {
      for (std::size_t i = 0; i < specs.size(); ++i) out.push_back(control_->receive(specs[i], from, tags[i]));
      return;
    }
    line_->throw_if_aborted();
    const CurrentGpu guard(line_->device);
    std::vector<std::unique_ptr<NcclPool::Slot>> slots;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      check_edge(*this, from, tags[i]);
      slots.push_back(take(*pool_of(*lane, tags[i]), specs[i]));
    }
    const auto operation = enqueue(
        *lane, "receive", tags.front(),
        [&](auto& memory) {
          memory.clear();
          for (const auto& slot : slots) memory.push_back(slot->memory);
        },
        [&](NcclOperation&) {
          for (const auto& slot : slots)
            device::check(cudaStreamWaitEvent(lane->stream.get(), slot->free.get(), 0), "cudaStreamWaitEvent");
        },
        [&] {
          for (const auto& slot : slots) {
            if (slot->memory.numel() == 0) continue;
            device::check(ncclRecv(slot->memory.data_ptr(), slot->memory.nbytes(), ncclUint8, 0,
                                   lane->communicator.get(), lane->stream.get()),
                          "ncclRecv");
          }
        });
    for (std::size_t i = 0; i < specs.size(); ++i) {
      out.push_back(
          std::make_unique<NcclReceiving>(line_, operation, pool_of(*lane, tags[i]), std::move(slots[i]), specs[i]));
    }
  }

  std::unique_ptr<Reducing> start_all_reduce(const at::Tensor& values, const std::vector<int>& members,
                                             int tag) override {
    const auto found = std::ranges::find_if(
        reductions_, [&](const auto& each) { return each.second == tag && each.first->plan.ranks == members; });
    if (found == reductions_.end()) return control_->start_all_reduce(values, members, tag);
    check_reducible(*this, values, members, tag);
    check_device(values);
    if (members.size() == 1) return start_ordered_all_reduce(*this, values, members, tag);
    const at::Tensor own = values.detach().view({-1});
    at::Tensor gathered = room_to_gather(own, members.size());
    NcclLane& lane = *found->first;
    auto operation = enqueue(
        lane, "all-reduce", tag, [&](auto& memory) { memory = {own, gathered}; },
        [&](NcclOperation& own_operation) { order_after_compute(lane, own_operation); },
        [&] { reduce(lane, own, gathered); });
    return std::make_unique<NcclReducing>(line_, std::move(operation), own, std::move(gathered));
  }

  Activity& activity() override { return control_->activity(); }

  void barrier() override {
    line_->throw_if_aborted();
    control_->barrier();
  }

  void abort(const std::string& reason) override {
    bool first = false;
    {
      const std::lock_guard lock(line_->mutex);
      first = !line_->aborted;
      if (first) line_->reason = reason;
      line_->aborted.store(true, std::memory_order_release);
    }
    if (first) {
      try {
        const std::lock_guard lock(telling_);
        if (!watch_store_->check({kAbortKey})) watch_store_->set(kAbortKey, reason);
      } catch (const std::exception&) {  // the others learn from the control channel or from their deadlines
      }
      control_->abort(reason);
    }
    // No thread may be inside a call on a communicator that is aborted. A thread that is stuck there stays stuck: the
    // message above ends the run.
    const std::unique_lock lock(calling_, std::chrono::seconds(1));
    if (lock.owns_lock()) abort_communicators();
  }

 private:
  void create(std::size_t number, const CommunicatorPlan& plan) {
    lanes_.push_back(std::make_unique<NcclLane>());
    NcclLane& lane = *lanes_.back();
    lane.plan = plan;
    lane.stream = device::make_urgent_stream();
    const auto place = std::ranges::find(plan.ranks, rank()) - plan.ranks.begin();
    const ncclUniqueId id = exchange_id(number, plan, place == 0);
    ncclConfig_t config =
        nccl_config(plan.reduces ? NcclUse::Reduction : NcclUse::Edge, options_.most_ctas, lane.plan.name.c_str());
    ncclComm_t raw = nullptr;
    const ncclResult_t begun = ncclCommInitRankConfig(&raw, to_int(plan.ranks.size()), id, to_int(place), &config);
    lane.communicator = device::NcclCommunicator(raw);
    settle(lane, begun, "ncclCommInitRankConfig");
    warm_up(lane, distinct_messages(program_, to_int(number), rank()), place == 0);
    for (const int tag : plan.tags) {
      if (plan.reduces) {
        reductions_.emplace_back(&lane, tag);
      } else if (place == 0) {
        out_[edge_key(plan.ranks[1], tag)] = &lane;
      } else {
        in_[edge_key(plan.ranks[0], tag)] = &lane;
      }
    }
  }

  /// Exchanges each of `messages`, or one value if there are none. A communicator's first call connects it and waits
  /// for the other end, and so does the first call for which NCCL chooses another algorithm, which depends on the
  /// bytes. In a step, calls of several communicators could wait for each other.
  void warm_up(NcclLane& lane, std::vector<std::vector<NcclCall>> messages, bool sends) {
    if (messages.empty()) {
      NcclCall one{NcclCall::Kind::AllReduce, 0, -1, {{1}, at::kFloat}};
      if (!lane.plan.reduces) one.kind = sends ? NcclCall::Kind::Send : NcclCall::Kind::Receive;
      messages.push_back({one});
    }
    for (const std::vector<NcclCall>& message : messages) {
      std::vector<at::Tensor> tensors;
      at::Tensor gathered;
      for (const NcclCall& call : message) {
        tensors.push_back(
            at::empty(call.spec.shape, at::TensorOptions(call.spec.dtype).device(line_->device)).fill_(0));
        if (call.kind == NcclCall::Kind::AllReduce) gathered = room_to_gather(tensors.back(), lane.plan.ranks.size());
      }
      NcclOperation operation;
      order_after_compute(lane, operation);
      device::check(ncclGroupStart(), "ncclGroupStart");
      for (std::size_t i = 0; i < message.size(); ++i) {
        const at::Tensor& each = tensors[i];
        if (each.numel() == 0) continue;
        if (message[i].kind == NcclCall::Kind::AllReduce) {
          reduce(lane, each.view({-1}), gathered);
        } else if (message[i].kind == NcclCall::Kind::Send) {
          device::check(
              ncclSend(each.const_data_ptr(), each.nbytes(), ncclUint8, 1, lane.communicator.get(), lane.stream.get()),
              "ncclSend");
        } else {
          device::check(
              ncclRecv(each.data_ptr(), each.nbytes(), ncclUint8, 0, lane.communicator.get(), lane.stream.get()),
              "ncclRecv");
        }
      }
      settle(lane, ncclGroupEnd(), "ncclGroupEnd");
      wait_until(lane, "its first exchange", [&] {
        const cudaError_t status = cudaStreamQuery(lane.stream.get());
        if (status != cudaErrorNotReady) device::check(status, "cudaStreamQuery");
        return status == cudaSuccess;
      });
      if (lane.plan.reduces || sends) continue;
      // Memory for the step's receives: its first ones need not wait for work that is enqueued before them.
      for (const NcclCall& call : message) {
        if (call.tag < 0) continue;
        std::vector<std::unique_ptr<NcclPool::Slot>> slots;
        const auto pool = pool_of(lane, call.tag);
        for (int i = 0; i < kSlotsAtStart; ++i) slots.push_back(take(*pool, call.spec));
        for (auto& slot : slots) pool->idle.push_back(std::move(slot));
      }
    }
  }

  /// Enqueues the sum of `own` over the lane's members, or their values into `gathered` if it is defined.
  static void reduce(NcclLane& lane, const at::Tensor& own, const at::Tensor& gathered) {
    const auto count = to_index(own.numel());
    if (count == 0) return;
    if (gathered.defined()) {
      device::check(ncclAllGather(own.const_data_ptr(), gathered.data_ptr(), count, ncclFloat, lane.communicator.get(),
                                  lane.stream.get()),
                    "ncclAllGather");
    } else {
      device::check(ncclAllReduce(own.const_data_ptr(), own.data_ptr(), count, ncclFloat, ncclSum,
                                  lane.communicator.get(), lane.stream.get()),
                    "ncclAllReduce");
    }
  }

  /// Undefined if NCCL sums.
  [[nodiscard]] at::Tensor room_to_gather(const at::Tensor& own, std::size_t members) const {
    if (!options_.deterministic || members <= 2) return {};
    return at::empty({static_cast<std::int64_t>(members), own.numel()}, own.options());
  }

  /// The lane for all of a message; null if the message goes over the control channel.
  NcclLane* lane_of(const std::unordered_map<std::uint64_t, NcclLane*>& lanes, int peer,
                    std::span<const int> tags) const {
    NcclLane* out = nullptr;
    for (std::size_t i = 0; i < tags.size(); ++i) {
      const auto found = lanes.find(edge_key(peer, tags[i]));
      NcclLane* const lane = found == lanes.end() ? nullptr : found->second;
      if (i > 0 && lane != out) {
        throw std::invalid_argument(fmt::format(
            "rank {}: tags {} and {} of one message go over different communicators", rank(), tags.front(), tags[i]));
      }
      out = lane;
    }
    return out;
  }

  std::shared_ptr<NcclPool> pool_of(NcclLane& lane, int tag) const {
    std::shared_ptr<NcclPool>& pool = lane.pools[tag];
    if (!pool) pool = std::make_shared<NcclPool>(line_->device, compute_stream(line_->device));
    return pool;
  }

  /// Waits for transfers in progress, unless the run was aborted: the watching thread ends those that are late.
  void drain() noexcept {
    try {
      const CurrentGpu guard(line_->device);
      for (const auto& lane : lanes_) {
        while (!line_->aborted) {
          {
            const std::lock_guard lock(lane->mutex);
            lane->reap();
            if (lane->pending.empty()) break;
          }
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
      }
    } catch (const std::exception&) {  // the device is lost
    }
  }

  /// As abort_together with all lanes.
  void abort_communicators() noexcept {
    try {
      const CurrentGpu guard(line_->device);
      std::vector<ncclComm_t> idle, busy;
      for (const auto& lane : lanes_) {
        const std::lock_guard lock(lane->mutex);
        if (ncclComm_t raw = lane->communicator.release()) (lane.get() == inside_ ? busy : idle).push_back(raw);
      }
      abort_together(idle, busy);
    } catch (const std::exception&) {  // the device is lost, and its communicators with it
    }
  }

  ncclUniqueId exchange_id(std::size_t number, const CommunicatorPlan& plan, bool first) {
    const std::string key = fmt::format("communicator/{}", number);
    ncclUniqueId id{};
    if (first) {
      device::check(ncclGetUniqueId(&id), "ncclGetUniqueId");
      store_->set(key, std::vector<std::uint8_t>(id.internal, id.internal + sizeof id.internal));
      return id;
    }
    std::vector<std::uint8_t> bytes;
    try {
      store_->wait({key}, deadline_);
      bytes = store_->get(key);
    } catch (const std::exception&) {
      throw meeting::PeerError(fmt::format("rank {} waited {} for rank {} to start NCCL communicator \"{}\"", rank(),
                                           meeting::seconds_text(deadline_), plan.ranks.front(), plan.name),
                               meeting::PeerError::Cause::Deadline);
    }
    if (bytes.size() != sizeof id.internal) {
      throw meeting::PeerError(fmt::format("rank {} announces NCCL communicator \"{}\" with {} bytes, expected {}",
                                           plan.ranks.front(), plan.name, bytes.size(), sizeof id.internal));
    }
    std::copy(bytes.begin(), bytes.end(), id.internal);
    return id;
  }

  /// Polls until `done()`, the deadline or an error of NCCL.
  template <typename Done>
  void wait_until(NcclLane& lane, const char* what, const Done& done) {
    const auto end = Clock::now() + deadline_;
    while (!done()) {
      line_->throw_if_aborted();
      ncclResult_t state = ncclSuccess;
      device::check(ncclCommGetAsyncError(lane.communicator.get(), &state), "ncclCommGetAsyncError");
      if (state != ncclInProgress) device::check(state, lane.plan.name.c_str());
      if (Clock::now() > end) throw_late(lane, what);
      std::this_thread::yield();
    }
  }

  [[noreturn]] void throw_late(const NcclLane& lane, const char* what) const {
    throw meeting::PeerError(fmt::format("rank {} waited {} for {} of NCCL communicator \"{}\"", rank(),
                                         meeting::seconds_text(deadline_), what, lane.plan.name),
                             meeting::PeerError::Cause::Deadline);
  }

  /// Returns once the call that returned `status` is enqueued: on a nonblocking communicator, a thread of NCCL does
  /// that.
  void settle(NcclLane& lane, ncclResult_t status, const char* call) {
    inside_ = &lane;
    const auto end = Clock::now() + deadline_;
    while (status == ncclInProgress) {
      line_->throw_if_aborted();
      device::check(ncclCommGetAsyncError(lane.communicator.get(), &status), "ncclCommGetAsyncError");
      if (status != ncclInProgress) break;
      if (Clock::now() > end) throw_late(lane, call);
      std::this_thread::yield();
    }
    device::check(status, call);
    inside_ = nullptr;
  }

  /// Makes the lane wait for what is enqueued on this thread's stream so far.
  void order_after_compute(NcclLane& lane, NcclOperation& operation) {
    device::check(cudaEventRecord(operation.ready.get(), compute_stream(line_->device)), "cudaEventRecord");
    device::check(cudaStreamWaitEvent(lane.stream.get(), operation.ready.get(), 0), "cudaStreamWaitEvent");
  }

  /// Enqueues one group on the lane: what `order(operation)` lets it wait for, then the NCCL calls of `calls()`, which
  /// use the memory that `hold(tensors)` names.
  template <typename Hold, typename Order, typename Calls>
  std::shared_ptr<NcclOperation> enqueue(NcclLane& lane, const char* kind, int tag, const Hold& hold,
                                         const Order& order, const Calls& calls) {
    line_->throw_if_aborted();
    const CurrentGpu guard(line_->device);
    std::shared_ptr<NcclOperation> operation;
    {
      const std::lock_guard lock(lane.mutex);
      lane.reap();
      // A caller that still holds one may query its event.
      const auto unused = std::ranges::find_if(lane.idle, [](const auto& each) { return each.use_count() == 1; });
      if (unused == lane.idle.end()) {
        operation = std::make_shared<NcclOperation>();
      } else {
        operation = std::move(*unused);
        *unused = std::move(lane.idle.back());
        lane.idle.pop_back();
      }
    }
    operation->kind = kind;
    operation->tag = tag;
    try {
      const std::lock_guard lock(calling_);
      line_->throw_if_aborted();
      order(*operation);
      hold(under_way_);
      device::check(ncclGroupStart(), "ncclGroupStart");
      try {
        calls();
      } catch (...) {
        (void)ncclGroupEnd();
        throw;
      }
      settle(lane, ncclGroupEnd(), kind);
      device::check(cudaEventRecord(operation->done.get(), lane.stream.get()), "cudaEventRecord");
      under_way_.clear();
    } catch (const DeviceError&) {
      // A peer that gave up causes errors here before its reason arrives.
      if (const std::string reason = told(); !reason.empty())
        throw meeting::PeerError(reason, meeting::PeerError::Cause::Peer);
      throw;
    }
    const std::lock_guard lock(lane.mutex);
    operation->number = ++lane.calls;
    operation->since = Clock::now();
    lane.pending.push_back(operation);
    return operation;
  }

  /// Memory for `spec` whose `free` has been recorded.
  std::unique_ptr<NcclPool::Slot> take(NcclPool& pool, const TensorSpec& spec) {
    {
      const std::lock_guard lock(pool.mutex);
      const auto fits =
          std::ranges::find_if(pool.idle, [&](const auto& each) { return same_spec(spec, each->memory); });
      if (fits != pool.idle.end()) {
        std::unique_ptr<NcclPool::Slot> slot = std::move(*fits);
        *fits = std::move(pool.idle.back());
        pool.idle.pop_back();
        return slot;
      }
    }
    auto slot = std::make_unique<NcclPool::Slot>();
    slot->memory = at::empty(spec.shape, at::TensorOptions(spec.dtype).device(line_->device));
    slot->free = device::make_order_event();
    // The allocator may return memory that work enqueued here still reads.
    device::check(cudaEventRecord(slot->free.get(), pool.compute), "cudaEventRecord");
    return slot;
  }

  void check_device(const at::Tensor& tensor) const {
    if (tensor.device() == line_->device) return;
    throw std::invalid_argument(fmt::format("channel nccl of rank {} carries tensors on {}, got {} on {}", rank(),
                                            line_->device.str(), describe(spec_of(tensor)), tensor.device().str()));
  }

  /// Watches all operations until the channel is destroyed.
  void watch() {
    std::unique_lock lock(watching_);
    while (!changed_.wait_for(lock, kWatchPeriod, [this] { return stop_; })) {
      if (line_->aborted) continue;
      lock.unlock();
      try {
        if (const std::string found = trouble(); !found.empty()) abort(found);
      } catch (const std::exception& error) { abort(fmt::format("rank {}: {}", rank(), error.what())); }
      lock.lock();
    }
  }

  /// Why the run cannot continue; empty if it can.
  std::string trouble() {
    const CurrentGpu guard(line_->device);
    // Only one thread at a time may be inside a communicator, and the thread that is checks for errors itself.
    const std::unique_lock polling(calling_, std::try_to_lock);
    std::shared_ptr<NcclOperation> late;  // the one that has waited longest: others may wait for it
    const NcclLane* late_on = nullptr;
    for (const auto& lane : lanes_) {
      const std::lock_guard lock(lane->mutex);
      lane->reap();
      ncclResult_t state = ncclSuccess;
      if (polling.owns_lock() && lane->communicator.get()) {
        device::check(ncclCommGetAsyncError(lane->communicator.get(), &state), "ncclCommGetAsyncError");
        if (state != ncclInProgress) device::check(state, lane->plan.name.c_str());
      }
      if (lane->pending.empty() || Clock::now() - lane->pending.front()->since < deadline_) continue;
      if (!late || lane->pending.front()->since < late->since) {
        late = lane->pending.front();
        late_on = lane.get();
      }
    }
    if (late) {
      const std::lock_guard lock(line_->mutex);
      line_->late = true;
      return fmt::format("rank {} waited {} for {} {} under tag {} of {}", rank(), meeting::seconds_text(deadline_),
                         late->kind, late->number, late->tag, late_on->plan.name);
    }
    return told();
  }

  /// The reason that a rank gave for ending the run; empty if none did.
  std::string told() {
    const std::lock_guard lock(telling_);
    try {
      if (watch_store_->check({kAbortKey})) return watch_store_->get_to_str(kAbortKey);
    } catch (const std::exception&) {  // the rendezvous reports its loss
    }
    return "";
  }

  NcclProgram program_;
  std::unique_ptr<Channel> control_;
  std::chrono::milliseconds deadline_;
  NcclOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Store> watch_store_;  ///< for the watching thread and abort
  std::mutex telling_;                           ///< of watch_store_
  std::shared_ptr<NcclLine> line_;
  std::vector<std::unique_ptr<NcclLane>> lanes_;  ///< in the order of their creation
  std::unordered_map<std::uint64_t, NcclLane*> out_;
  std::unordered_map<std::uint64_t, NcclLane*> in_;
  std::vector<std::pair<NcclLane*, int>> reductions_;  ///< with their tags
  std::timed_mutex calling_;                           ///< held by the only thread that may call NCCL
  NcclLane* inside_ = nullptr;                         ///< whose call is not done; with calling_
  std::vector<at::Tensor> under_way_;                  ///< of that call: a failed one may still be enqueued
  std::mutex watching_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::jthread watch_;
};

}  // namespace

std::unique_ptr<Channel> make_nccl_channel(const meeting::LaunchInfo& launch, NcclProgram program,
                                           std::unique_ptr<Channel> control, c10::Device device,
                                           std::chrono::milliseconds deadline, const NcclOptions& options) {
  if (const char* order = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT"); order && std::string_view(order) != "0") {
    throw DeviceError(fmt::format(
        "NCCL_LAUNCH_ORDER_IMPLICIT is {}: NCCL would start each rank's transfers in the order of its calls, one after "
        "the other, which deadlocks pipelines; unset it",
        order));
  }
  return std::make_unique<NcclChannel>(meeting::find_meeting(launch, deadline), std::move(program), std::move(control),
                                       device, deadline, options);
}

void share_gpu(int rank) {
  char host[256] = "host";
  (void)::gethostname(host, sizeof host - 1);
  ::setenv("NCCL_HOSTID", fmt::format("{}-{}", host, rank).c_str(), 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  ::setenv("NCCL_IB_DISABLE", "1", 0);
}

}  // namespace stagecraft::channel
