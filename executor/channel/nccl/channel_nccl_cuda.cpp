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
#include "executor/channel/channel.h"
#include "executor/channel/collective.h"
#include "executor/channel/nccl/channel_nccl.h"
#include "executor/channel/nccl/nccl_lanes.h"
#include "executor/meeting/launch_info.h"
#include "executor/meeting/meeting_store.h"

namespace stagecraft::channel {
namespace {

constexpr const char* kAbortKey = "abort";
/// Polling interval of the watching thread.
constexpr auto kWatchPeriod = std::chrono::milliseconds(50);

class NcclChannel : public Channel {
 public:
  NcclChannel(const meeting::LaunchInfo& launch, const NcclProgram& program, std::unique_ptr<Channel> control,
              c10::Device device, std::chrono::milliseconds deadline, const NcclOptions& options)
      : control_(std::move(control)),
        deadline_(deadline),
        store_(meeting::connect_store(launch, "nccl", deadline)),
        watch_store_(meeting::connect_store(launch, "nccl", deadline)),
        line_(std::make_shared<NcclLine>()),
        lanes_(line_, deadline, options) {
    line_->rank = launch.rank;
    line_->device = device;
    const CurrentGpu guard(device);
    for (std::size_t c = 0; c < program.communicators.size(); ++c) {
      if (std::ranges::count(program.communicators[c].ranks, launch.rank) > 0) create(program, c);
    }
    watch_ = std::jthread([this] { watch(); });
  }

  ~NcclChannel() override {
    lanes_.drain();
    {
      const std::lock_guard lock(watching_);
      stop_ = true;
    }
    changed_.notify_all();
    watch_.join();
  }

  int rank() const override { return line_->rank; }
  int ranks() const override { return control_->ranks(); }
  /// NCCL moves values, not layouts.
  bool keeps_strides() const override { return false; }

  std::unique_ptr<Sending> send(const at::Tensor& tensor, int to, int tag) override {
    std::vector<std::unique_ptr<Sending>> out;
    send_message({&tensor, 1}, to, {&tag, 1}, out);
    return std::move(out.front());
  }

  void send_message(std::span<const at::Tensor> tensors, int to, std::span<const int> tags,
                    std::vector<std::unique_ptr<Sending>>& out) override {
    NcclLane* const lane = lane_of(out_, to, tags);
    if (!lane) return control_->send_message(tensors, to, tags, out);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      check_edge(*this, to, tags[i]);
      check_contiguous(tensors[i]);
      check_on_lane(tensors[i]);
    }
    const auto operation = enqueue(
        *lane, "send", tags.front(), [&](auto& memory) { memory.assign(tensors.begin(), tensors.end()); },
        [&](NcclOperation& begun) { lanes_.order_after_compute(*lane, begun); },
        [&] {
          for (const at::Tensor& tensor : tensors) NcclLanes::send(*lane, tensor, NcclLanes::kReceiver);
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
    if (!lane) return control_->receive_message(specs, from, tags, out);
    line_->throw_if_aborted();
    const CurrentGpu guard(line_->device);
    std::vector<TakenSlot> slots;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      check_edge(*this, from, tags[i]);
      slots.push_back(lanes_.take(lanes_.pool_of(*lane, tags[i]), specs[i]));
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
          for (const TakenSlot& slot : slots) NcclLanes::receive(*lane, slot->memory, NcclLanes::kSender);
        });
    for (std::size_t i = 0; i < specs.size(); ++i)
      out.push_back(std::make_unique<NcclReceiving>(line_, operation, std::move(slots[i]), specs[i]));
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
    lanes_.abort();
  }

 protected:
  std::unique_ptr<CollectiveInProgress> begin(const CollectiveCall& call) override {
    const auto found = std::ranges::find_if(reductions_, [&](const auto& reduction) {
      return reduction.second == call.tag && reduction.first->plan.ranks == call.members;
    });
    if (found == reductions_.end()) return control_->start(call);
    check_on_lane(call.values);
    NcclLane& lane = *found->first;
    NcclWork work = lanes_.work_of(call, place_of(rank(), call));
    auto operation = enqueue(
        lane, collective_text(call.kind), call.tag,
        [&](auto& memory) { memory = {call.values, call.received, work.gathered}; },
        [&](NcclOperation& own_operation) { lanes_.order_after_compute(lane, own_operation); },
        [&] { NcclLanes::collect(lane, work); });
    return std::make_unique<NcclCollective>(line_, std::move(operation), std::move(work));
  }

 private:
  void create(const NcclProgram& program, std::size_t number) {
    const CommunicatorPlan& plan = program.communicators[number];
    const bool first = plan.ranks.front() == rank();
    NcclLane& lane =
        lanes_.create(plan, exchange_id(number, plan, first), distinct_messages(program, to_int(number), rank()));
    for (const int tag : plan.tags) {
      if (plan.reduces) {
        reductions_.emplace_back(&lane, tag);
      } else if (first) {
        out_[edge_key(plan.ranks[1], tag)] = &lane;
      } else {
        in_[edge_key(plan.ranks[0], tag)] = &lane;
      }
    }
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

  /// As NcclLanes::enqueue. A peer that gave up causes errors there before its reason arrives.
  template <typename... Arguments>
  std::shared_ptr<NcclOperation> enqueue(NcclLane& lane, const Arguments&... arguments) {
    try {
      return lanes_.enqueue(lane, arguments...);
    } catch (const DeviceError&) {
      if (const std::string reason = told(); !reason.empty())
        throw meeting::PeerError(reason, meeting::PeerError::Cause::Peer);
      throw;
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

  void check_on_lane(const at::Tensor& tensor) const {
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
        std::string found = lanes_.trouble();
        if (found.empty()) found = told();
        if (!found.empty()) abort(found);
      } catch (const std::exception& error) { abort(fmt::format("rank {}: {}", rank(), error.what())); }
      lock.lock();
    }
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

  std::unique_ptr<Channel> control_;
  std::chrono::milliseconds deadline_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Store> watch_store_;  ///< for the watching thread and abort
  std::mutex telling_;                           ///< of watch_store_
  std::shared_ptr<NcclLine> line_;
  NcclLanes lanes_;
  std::unordered_map<std::uint64_t, NcclLane*> out_;
  std::unordered_map<std::uint64_t, NcclLane*> in_;
  std::vector<std::pair<NcclLane*, int>> reductions_;  ///< with their tags
  std::mutex watching_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::jthread watch_;
};

}  // namespace

std::unique_ptr<Channel> make_nccl_channel(const meeting::LaunchInfo& launch, const NcclProgram& program,
                                           std::unique_ptr<Channel> control, c10::Device device,
                                           std::chrono::milliseconds deadline, const NcclOptions& options) {
  if (const char* order = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT"); order && std::string_view(order) != "0") {
    throw DeviceError(fmt::format(
        "NCCL_LAUNCH_ORDER_IMPLICIT is {}: NCCL would start each rank's transfers in the order of its calls, one after "
        "the other, which deadlocks pipelines; unset it",
        order));
  }
  return std::make_unique<NcclChannel>(meeting::find_meeting(launch, deadline), program, std::move(control), device,
                                       deadline, options);
}

void share_gpu(int rank) {
  char host[256] = "host";
  (void)::gethostname(host, sizeof host - 1);
  ::setenv("NCCL_HOSTID", fmt::format("{}-{}", host, rank).c_str(), 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  ::setenv("NCCL_IB_DISABLE", "1", 0);
}

}  // namespace stagecraft::channel
