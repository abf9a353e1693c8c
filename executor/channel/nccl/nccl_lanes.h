#pragma once

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "costmodel/index.h"
#include "executor/channel/channel.h"
#include "executor/channel/nccl/channel_nccl.h"
#include "executor/channel/nccl/nccl_transfers.h"

// Only for files that are built with CUDA.

namespace stagecraft::channel {

/// The communicators of one rank and what is in progress on them: the only code that calls NCCL in a run, one thread at
/// a time.
class NcclLanes {
 public:
  using Clock = std::chrono::steady_clock;
  /// Received tensors per tag that a step holds at a time: schedules post receives at most this far ahead.
  static constexpr int kSlotsAtStart = 2;

  NcclLanes(std::shared_ptr<NcclLine> line, std::chrono::milliseconds deadline, const NcclOptions& options)
      : line_(std::move(line)), deadline_(deadline), options_(options) {}
  ~NcclLanes() { abort_now(); }
  NcclLanes(const NcclLanes&) = delete;
  NcclLanes& operator=(const NcclLanes&) = delete;

  /// Creates the communicator `plan` of this rank, and exchanges `messages` on it. Collective among its ranks. Throws
  /// PeerError after the deadline, DeviceError if NCCL or CUDA fails.
  NcclLane& create(const CommunicatorPlan& plan, const ncclUniqueId& id,
                   const std::vector<std::vector<NcclCall>>& messages) {
    lanes_.push_back(std::make_unique<NcclLane>());
    NcclLane& lane = *lanes_.back();
    lane.plan = plan;
    lane.stream = device::make_urgent_stream();
    const auto place = std::ranges::find(plan.ranks, line_->rank) - plan.ranks.begin();
    ncclConfig_t config =
        nccl_config(plan.reduces ? NcclUse::Reduction : NcclUse::Edge, options_.most_ctas, lane.plan.name.c_str());
    ncclComm_t raw = nullptr;
    const ncclResult_t begun = ncclCommInitRankConfig(&raw, to_int(plan.ranks.size()), id, to_int(place), &config);
    lane.communicator = device::NcclCommunicator(raw);
    settle(lane, begun, "ncclCommInitRankConfig");
    warm_up(lane, messages, place == 0);
    return lane;
  }

  /// Enqueues one group on the lane: first the waits of `order(operation)`, then the NCCL calls of `calls()`, which use
  /// the memory that `hold(tensors)` names.
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
      const auto unused =
          std::ranges::find_if(lane.idle, [](const auto& candidate) { return candidate.use_count() == 1; });
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
    {
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
    }
    const std::lock_guard lock(lane.mutex);
    operation->number = ++lane.calls;
    operation->since = Clock::now();
    lane.pending.push_back(operation);
    return operation;
  }

  /// Places in the communicator of an edge.
  static constexpr int kSender = 0;
  static constexpr int kReceiver = 1;

  /// Adds a send to the communicator's rank `to` to the group; nothing for a tensor without values.
  static void send(NcclLane& lane, const at::Tensor& tensor, int to) {
    if (tensor.numel() == 0) return;
    device::check(
        ncclSend(tensor.const_data_ptr(), tensor.nbytes(), ncclUint8, to, lane.communicator.get(), lane.stream.get()),
        "ncclSend");
  }
  /// The receiving end of send, into `memory`.
  static void receive(NcclLane& lane, const at::Tensor& memory, int from) {
    if (memory.numel() == 0) return;
    device::check(
        ncclRecv(memory.data_ptr(), memory.nbytes(), ncclUint8, from, lane.communicator.get(), lane.stream.get()),
        "ncclRecv");
  }

  /// What a checked call of the `mine`-th member does. NCCL's own collectives need parts of equal counts and choose the
  /// order of a sum of more than two members; otherwise values are exchanged and summed here.
  [[nodiscard]] NcclWork work_of(const CollectiveCall& call, std::size_t mine) const {
    NcclWork out;
    out.call = call;
    out.mine = mine;
    const std::size_t members = call.members.size();
    const bool ordered = options_.deterministic && members > 2;
    if (call.kind == Collective::AllReduce) {
      if (!ordered) return out;
      out.gathered = at::empty({static_cast<std::int64_t>(members), call.values.numel()}, call.values.options());
      out.terms = out.gathered.unbind();
      out.sum = call.values;
      return out;
    }
    out.parts = call.values.split_with_sizes(call.counts);
    const at::Tensor& own = out.parts[mine];
    const bool equal = std::ranges::adjacent_find(call.counts, std::not_equal_to<>()) == call.counts.end();
    if (call.kind == Collective::AllToAll) {
      out.sent = out.parts;
      out.arriving = call.received.split_with_sizes(call.received_counts);
      out.terms = {own};
      out.sum = out.arriving[mine];
    } else if (call.kind == Collective::AllGather && !equal) {
      out.sent.assign(members, own);
      out.arriving = out.parts;
    } else if (call.kind == Collective::ReduceScatter && (!equal || ordered)) {
      out.gathered = at::empty({static_cast<std::int64_t>(members), own.numel()}, call.values.options());
      out.sent = out.parts;
      out.arriving = out.gathered.unbind();
      out.terms = out.arriving;
      out.terms[mine] = out.sum = own;
    }
    return out;
  }

  /// Adds the calls of `work` to the group; none without values.
  static void collect(NcclLane& lane, const NcclWork& work) {
    for (std::size_t i = 0; i < work.sent.size(); ++i) {
      if (i == work.mine) continue;
      send(lane, work.sent[i], to_int(i));
      receive(lane, work.arriving[i], to_int(i));
    }
    const at::Tensor& values = work.call.values;
    if (!work.sent.empty() || values.numel() == 0) return;
    ncclComm_t const communicator = lane.communicator.get();
    cudaStream_t const stream = lane.stream.get();
    if (work.gathered.defined()) {
      device::check(ncclAllGather(values.const_data_ptr(), work.gathered.data_ptr(), values.nbytes(), ncclUint8,
                                  communicator, stream),
                    "ncclAllGather");
    } else if (work.call.kind == Collective::AllGather) {
      const at::Tensor& own = work.parts[work.mine];
      device::check(
          ncclAllGather(own.const_data_ptr(), values.data_ptr(), own.nbytes(), ncclUint8, communicator, stream),
          "ncclAllGather");
    } else if (work.call.kind == Collective::AllReduce) {
      const auto [type, count] = summed_as(values);
      device::check(
          ncclAllReduce(values.const_data_ptr(), values.data_ptr(), count, type, ncclSum, communicator, stream),
          "ncclAllReduce");
    } else {
      const at::Tensor& own = work.parts[work.mine];
      const auto [type, count] = summed_as(own);
      device::check(
          ncclReduceScatter(values.const_data_ptr(), own.data_ptr(), count, type, ncclSum, communicator, stream),
          "ncclReduceScatter");
    }
  }

  std::shared_ptr<NcclPool> pool_of(NcclLane& lane, int tag) const {
    std::shared_ptr<NcclPool>& pool = lane.pools[tag];
    if (!pool) pool = std::make_shared<NcclPool>(line_->device);
    return pool;
  }

  /// Memory for `spec` whose `free` has been recorded.
  TakenSlot take(const std::shared_ptr<NcclPool>& pool, const TensorSpec& spec) {
    {
      const std::lock_guard lock(pool->mutex);
      const auto fits =
          std::ranges::find_if(pool->idle, [&](const auto& slot) { return same_spec(spec, slot->memory); });
      if (fits != pool->idle.end()) {
        TakenSlot slot(fits->release(), AbandonSlot{pool});
        *fits = std::move(pool->idle.back());
        pool->idle.pop_back();
        return slot;
      }
    }
    TakenSlot slot(std::make_unique<NcclPool::Slot>().release(), AbandonSlot{pool});
    slot->memory = at::empty(spec.shape, at::TensorOptions(spec.dtype).device(line_->device));
    slot->free = device::make_order_event();
    // The allocator may return memory that work enqueued on this thread's stream still uses.
    device::check(cudaEventRecord(slot->free.get(), compute_stream(line_->device)), "cudaEventRecord");
    return slot;
  }

  /// Makes the lane wait for what is enqueued on this thread's stream so far.
  void order_after_compute(NcclLane& lane, NcclOperation& operation) {
    device::check(cudaEventRecord(operation.ready.get(), compute_stream(line_->device)), "cudaEventRecord");
    device::check(cudaStreamWaitEvent(lane.stream.get(), operation.ready.get(), 0), "cudaStreamWaitEvent");
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

  /// Why the run cannot continue, according to this rank's transfers; empty if it can. Throws DeviceError.
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
      return fmt::format("rank {} waited {} for {} {} under tag {} of {}", line_->rank,
                         meeting::seconds_text(deadline_), late->kind, late->number, late->tag, late_on->plan.name);
    }
    return "";
  }

  /// Ends all transfers of this rank and releases the communicators, unless a thread is stuck inside NCCL: it stays
  /// stuck.
  void abort() {
    // No thread may be inside a call on a communicator that is aborted.
    std::unique_lock lock(calling_, std::try_to_lock);
    const auto end = Clock::now() + std::chrono::seconds(1);
    while (!lock && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      (void)lock.try_lock();
    }
    if (lock) abort_now();
  }

 private:
  /// NCCL's type of the values, and their number: a complex one is two.
  static std::pair<ncclDataType_t, std::size_t> summed_as(const at::Tensor& values) {
    const auto count = to_index(values.numel());
    switch (values.scalar_type()) {
      case at::kDouble:
        return {ncclDouble, count};
      case at::kHalf:
        return {ncclHalf, count};
      case at::kBFloat16:
        return {ncclBfloat16, count};
      case at::kComplexFloat:
        return {ncclFloat, 2 * count};
      case at::kComplexDouble:
        return {ncclDouble, 2 * count};
      default:
        return {ncclFloat, count};
    }
  }

  /// As abort_together with all lanes. The caller holds the lock or is the only thread.
  void abort_now() noexcept {
    try {
      const CurrentGpu guard(line_->device);
      std::vector<ncclComm_t> idle;
      std::vector<ncclComm_t> busy;
      for (const auto& lane : lanes_) {
        const std::lock_guard lock(lane->mutex);
        if (ncclComm_t raw = lane->communicator.release()) (lane.get() == inside_ ? busy : idle).push_back(raw);
      }
      abort_together(idle, busy);
    } catch (const std::exception&) {  // the device is lost, and its communicators with it
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
      std::vector<NcclWork> reductions;  // a message of one, or none
      for (const NcclCall& call : message) {
        tensors.push_back(
            at::empty(call.spec.shape, at::TensorOptions(call.spec.dtype).device(line_->device)).fill_(0));
        if (!is_collective(call.kind)) continue;
        const CollectiveCall collective = collective_of(call, tensors.back().view({-1}), lane.plan.ranks);
        reductions.push_back(work_of(collective, place_of(line_->rank, collective)));
      }
      NcclOperation operation;
      order_after_compute(lane, operation);
      device::check(ncclGroupStart(), "ncclGroupStart");
      for (const NcclWork& work : reductions) collect(lane, work);
      for (std::size_t i = 0; i < message.size(); ++i) {
        if (message[i].kind == NcclCall::Kind::Send) send(lane, tensors[i], kReceiver);
        if (message[i].kind == NcclCall::Kind::Receive) receive(lane, tensors[i], kSender);
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
        std::vector<TakenSlot> slots;
        const auto pool = pool_of(lane, call.tag);
        for (int i = 0; i < kSlotsAtStart; ++i) slots.push_back(take(pool, call.spec));
        for (TakenSlot& slot : slots) pool->idle.emplace_back(slot.release());
      }
    }
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
    throw meeting::PeerError(fmt::format("rank {} waited {} for {} of NCCL communicator \"{}\"", line_->rank,
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

  std::shared_ptr<NcclLine> line_;
  std::chrono::milliseconds deadline_;
  NcclOptions options_;
  std::vector<std::unique_ptr<NcclLane>> lanes_;  ///< in the order of their creation
  std::mutex calling_;                            ///< held by the only thread that may call NCCL
  NcclLane* inside_ = nullptr;                    ///< whose call is not done; with calling_
  std::vector<at::Tensor> under_way_;             ///< of that call: a failed one may still be enqueued
};

}  // namespace stagecraft::channel
