#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "costmodel/index.h"
#include "executor/channel/channel_checks.h"
#include "executor/channel/channel_nccl.h"
#include "executor/channel/nccl_transfers.h"
#include "executor/meeting/launch_info.h"
#include "executor/meeting/meeting_store.h"

namespace stagecraft::channel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kAbortKey = "abort";
/// Polling interval of the watching thread.
constexpr auto kWatchPeriod = std::chrono::milliseconds(50);

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
    for (std::size_t c = 0; c < program_.communicators.size(); ++c) {
      const CommunicatorPlan& plan = program_.communicators[c];
      if (std::ranges::find(plan.ranks, launch.rank) != plan.ranks.end()) create(c, plan);
    }
    watch_ = std::jthread([this] { watch(); });
  }

  ~NcclChannel() override {
    {
      const std::lock_guard lock(watching_);
      stop_ = true;
    }
    changed_.notify_all();
    watch_.join();
  }

  int rank() const override { return line_->rank; }
  int ranks() const override { return control_->ranks(); }

  std::unique_ptr<Sending> send(const at::Tensor& tensor, int to, int tag) override {
    const auto edge = out_.find(edge_key(to, tag));
    if (edge == out_.end()) return control_->send(tensor, to, tag);
    check_edge(*this, to, tag);
    check_sendable(tensor);
    check_device(tensor);
    auto operation = enqueue(*edge->second, "send", tag, [&](NcclLane& lane, NcclOperation& own) {
      order_after_compute(lane, own);
      if (tensor.numel() == 0) return ncclSuccess;
      return ncclSend(tensor.const_data_ptr(), tensor.nbytes(), ncclUint8, 1, lane.communicator.get(),
                      lane.stream.get());
    });
    return std::make_unique<NcclSending>(line_, std::move(operation), tensor.detach());
  }

  std::unique_ptr<Receiving> receive(const TensorSpec& spec, int from, int tag) override {
    const auto edge = in_.find(edge_key(from, tag));
    if (edge == in_.end()) return control_->receive(spec, from, tag);
    check_edge(*this, from, tag);
    line_->throw_if_aborted();
    const CurrentGpu guard(line_->device);
    std::shared_ptr<NcclPool>& pool = edge->second->pools[tag];
    if (!pool) pool = std::make_shared<NcclPool>(line_->device, compute_stream(line_->device));
    std::unique_ptr<NcclPool::Slot> slot = take(*pool, spec);
    auto operation = enqueue(*edge->second, "receive", tag, [&](NcclLane& lane, NcclOperation&) {
      device::check(cudaStreamWaitEvent(lane.stream.get(), slot->free.get(), 0), "cudaStreamWaitEvent");
      if (slot->memory.numel() == 0) return ncclSuccess;
      return ncclRecv(slot->memory.data_ptr(), slot->memory.nbytes(), ncclUint8, 0, lane.communicator.get(),
                      lane.stream.get());
    });
    return std::make_unique<NcclReceiving>(line_, std::move(operation), pool, std::move(slot), spec);
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
    at::Tensor gathered;
    if (options_.deterministic && members.size() > 2) {
      gathered = at::empty({static_cast<std::int64_t>(members.size()), own.numel()}, own.options());
    }
    auto operation = enqueue(*found->first, "all-reduce", tag, [&](NcclLane& lane, NcclOperation& operation_) {
      order_after_compute(lane, operation_);
      const auto count = to_index(own.numel());
      if (count == 0) return ncclSuccess;
      if (gathered.defined()) {
        return ncclAllGather(own.const_data_ptr(), gathered.data_ptr(), count, ncclFloat, lane.communicator.get(),
                             lane.stream.get());
      }
      return ncclAllReduce(own.const_data_ptr(), own.data_ptr(), count, ncclFloat, ncclSum, lane.communicator.get(),
                           lane.stream.get());
    });
    return std::make_unique<NcclReducing>(line_, std::move(operation), own, std::move(gathered));
  }

  Activity& activity() override { return control_->activity(); }

  void barrier() override {
    line_->throw_if_aborted();
    control_->barrier();
  }

  void abort(const std::string& reason) override {
    {
      const std::lock_guard lock(line_->mutex);
      if (line_->aborted) return;
      line_->reason = reason;
      line_->aborted.store(true, std::memory_order_release);
    }
    try {
      const std::lock_guard lock(telling_);
      if (!watch_store_->check({kAbortKey})) watch_store_->set(kAbortKey, reason);
    } catch (const std::exception&) {  // the others learn from the control channel or from their deadlines
    }
    control_->abort(reason);
    // No thread may be inside a call on a communicator that is aborted. A thread that is stuck there stays stuck: the
    // message above ends the run.
    const std::unique_lock lock(calling_, std::chrono::seconds(1));
    if (!lock.owns_lock()) return;
    for (const auto& lane : lanes_) {
      const std::lock_guard inner(lane->mutex);
      lane->communicator = {};
    }
  }

 private:
  void create(std::size_t number, const CommunicatorPlan& plan) {
    lanes_.push_back(std::make_unique<NcclLane>());
    NcclLane& lane = *lanes_.back();
    lane.plan = plan;
    lane.stream = device::make_urgent_stream();
    const auto place = std::ranges::find(plan.ranks, rank()) - plan.ranks.begin();
    const ncclUniqueId id = exchange_id(number, plan, place == 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // otherwise nothing could abort a call that waits for a lost peer
    config.maxCTAs = options_.most_ctas;
    config.commName = lane.plan.name.c_str();
    ncclComm_t raw = nullptr;
    const ncclResult_t begun = ncclCommInitRankConfig(&raw, to_int(plan.ranks.size()), id, to_int(place), &config);
    lane.communicator = device::NcclCommunicator(raw);
    settle(lane, begun, "ncclCommInitRankConfig");
    // The first call sets up the connection and waits for the other end, whatever its size. Do it here: in a step,
    // calls of several communicators could wait for each other.
    at::Tensor one = at::empty({1}, at::TensorOptions(at::kFloat).device(line_->device)).fill_(0);
    auto operation = std::make_shared<NcclOperation>();
    order_after_compute(lane, *operation);
    if (plan.reduces) {
      settle(lane,
             ncclAllReduce(one.data_ptr(), one.data_ptr(), 1, ncclFloat, ncclSum, lane.communicator.get(),
                           lane.stream.get()),
             "ncclAllReduce");
    } else if (place == 0) {
      settle(lane, ncclSend(one.data_ptr(), 1, ncclFloat, 1, lane.communicator.get(), lane.stream.get()), "ncclSend");
    } else {
      settle(lane, ncclRecv(one.data_ptr(), 1, ncclFloat, 0, lane.communicator.get(), lane.stream.get()), "ncclRecv");
    }
    wait_until(lane, "its first exchange", [&] {
      const cudaError_t status = cudaStreamQuery(lane.stream.get());
      if (status != cudaErrorNotReady) device::check(status, "cudaStreamQuery");
      return status == cudaSuccess;
    });
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
      if (Clock::now() > end) {
        throw meeting::PeerError(fmt::format("rank {} waited {} for {} of NCCL communicator \"{}\"", rank(),
                                             meeting::seconds_text(deadline_), what, lane.plan.name),
                                 meeting::PeerError::Cause::Deadline);
      }
      std::this_thread::yield();
    }
  }

  /// Returns once the call that returned `status` is enqueued: a nonblocking communicator may return "in progress"
  /// first.
  void settle(NcclLane& lane, ncclResult_t status, const char* call) {
    if (status != ncclInProgress) device::check(status, call);
    wait_until(lane, call, [&] {
      ncclResult_t state = ncclSuccess;
      device::check(ncclCommGetAsyncError(lane.communicator.get(), &state), "ncclCommGetAsyncError");
      return state == ncclSuccess;
    });
  }

  /// Makes the lane wait for what is enqueued on this thread's stream so far.
  void order_after_compute(NcclLane& lane, NcclOperation& operation) {
    device::check(cudaEventRecord(operation.ready.get(), compute_stream(line_->device)), "cudaEventRecord");
    device::check(cudaStreamWaitEvent(lane.stream.get(), operation.ready.get(), 0), "cudaStreamWaitEvent");
  }

  /// `call(lane, operation)` enqueues on the lane's stream.
  template <typename Call>
  std::shared_ptr<NcclOperation> enqueue(NcclLane& lane, const char* kind, int tag, const Call& call) {
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
      settle(lane, call(lane, *operation), kind);
      device::check(cudaEventRecord(operation->done.get(), lane.stream.get()), "cudaEventRecord");
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
    for (const auto& lane : lanes_) {
      const std::lock_guard lock(lane->mutex);
      lane->reap();
      ncclResult_t state = ncclSuccess;
      if (lane->communicator.get()) {
        device::check(ncclCommGetAsyncError(lane->communicator.get(), &state), "ncclCommGetAsyncError");
        if (state != ncclInProgress) device::check(state, lane->plan.name.c_str());
      }
      if (lane->pending.empty()) continue;
      const NcclOperation& first = *lane->pending.front();
      if (Clock::now() - first.since < deadline_) continue;
      const std::lock_guard inner(line_->mutex);
      line_->late = true;
      return fmt::format("rank {} waited {} for {} {} under tag {} of {}", rank(), meeting::seconds_text(deadline_),
                         first.kind, first.number, first.tag, lane->plan.name);
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
  std::timed_mutex calling_;                           ///< held during an NCCL call
  std::mutex watching_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::jthread watch_;
};

}  // namespace

std::unique_ptr<Channel> make_nccl_channel(const meeting::LaunchInfo& launch, NcclProgram program,
                                           std::unique_ptr<Channel> control, c10::Device device,
                                           std::chrono::milliseconds deadline, const NcclOptions& options) {
  // Makes kernels of several communicators on one GPU start in the order of the calls.
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
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
