#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/channel/nccl/channel_nccl.h"
#include "executor/channel/nccl/nccl_transfers.h"
#include "executor/device/cuda_handles.h"
#include "executor/device/device.h"
#include "profiler/links/links.h"

namespace stagecraft::profiler {
namespace {

using enum LinkOperation;

int gpu_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  const std::string found = status == cudaSuccess
                                ? "0 devices"
                                : fmt::format("{} ({})", cudaGetErrorName(status), cudaGetErrorString(status));
  throw DeviceError(
      ErrorKind::NoGpu,
      fmt::format("no GPU to measure: cudaGetDeviceCount found {}, expected at least one GPU with its driver; to "
                  "measure processors, use --channel gloo",
                  found));
}

/// One GPU's streams and memory.
struct Gpu {
  int device = 0;
  device::CudaStream stream;
  device::CudaStream second;  ///< of the receives where both directions are busy
  device::DeviceMemory memory;
  device::PinnedMemory host;  ///< of copies; empty before the first
  std::size_t bytes = 0;
  std::size_t host_bytes = 0;
};

/// The devices that take part in `task`, in the order of their ranks in the communicator.
std::vector<int> members_of(const LinkTask& task) {
  if (task.operation == SendReceive && task.ranks == 2) return {task.from, task.to};
  std::vector<int> out(to_index(task.ranks));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

/// A communicator to measure with, as runs make them.
struct Wanted {
  channel::NcclUse use;
  std::vector<int> members;  ///< devices; of an edge sender and receiver
  friend bool operator==(const Wanted&, const Wanted&) = default;
};

/// One for each direction of each pair that exchanges messages; one for all members of a collective.
std::vector<Wanted> wanted_by(const LinkTask& task, const std::vector<int>& members) {
  std::vector<Wanted> out;
  const bool messages = task.operation == SendReceive || task.operation == Pairs || task.operation == Duplex;
  if (!messages) return {{channel::NcclUse::Reduction, members}};
  if (members.size() == 1) return {{channel::NcclUse::Edge, members}};
  for (std::size_t i = 0; i + 1 < members.size(); i += 2) {
    out.push_back({channel::NcclUse::Edge, {members[i], members[i + 1]}});
    out.push_back({channel::NcclUse::Edge, {members[i + 1], members[i]}});
  }
  return out;
}

class NcclMeter : public LinkMeter {
 public:
  NcclMeter(int ranks, std::chrono::milliseconds deadline) : deadline_(deadline) {
    for (int device = 0; device < ranks; ++device) {
      const device::DeviceGuard guard(device);
      gpus_.push_back({device, device::make_urgent_stream(), device::make_urgent_stream(), {}, {}});
    }
  }
  ~NcclMeter() override { disconnect(); }
  NcclMeter(const NcclMeter&) = delete;
  NcclMeter& operator=(const NcclMeter&) = delete;
  int ranks() const override { return to_int(gpus_.size()); }
  bool copies() const override { return true; }
  // Events resolve about half a microsecond (cudaEventElapsedTime): 0.5 % of this.
  Seconds shortest_sample() const override { return Seconds(1e-4); }

  std::vector<double> seconds_of(const LinkTask& task, std::int64_t samples, std::int64_t batch) override {
    const std::vector<int> members = members_of(task);
    make_room(task, members);
    const bool copies = task.operation == HostToDevice || task.operation == DeviceToHost;
    if (!copies) connect(wanted_by(task, members));
    failed_ = false;
    std::vector<std::vector<double>> times(members.size());
    std::exception_ptr first;
    std::mutex mutex;
    {
      // One thread per GPU: the driver blocks a thread whose stream is full, and another rank may have to continue
      // first.
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < members.size(); ++i) {
        threads.emplace_back([&, i] {
          try {
            times[i] = times_of(task, to_int(i), gpus_.at(to_index(members[i])), samples, batch);
          } catch (...) {
            const std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
            failed_ = true;
          }
        });
      }
    }
    if (first) {
      disconnect();
      std::rethrow_exception(first);
    }
    std::vector<double> out = times.front();
    for (const auto& other : times) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::max(out[i], other[i]);
    }
    return out;
  }

 private:
  void make_room(const LinkTask& task, const std::vector<int>& members) {
    // What is sent and what is received, each with shares rounded up.
    const auto bytes = 2 * (to_index(task.bytes.value) + members.size() * sizeof(float));
    for (const int member : members) {
      Gpu& gpu = gpus_.at(to_index(member));
      const device::DeviceGuard guard(gpu.device);
      if (gpu.bytes < bytes) {
        gpu.memory = {};  // before allocating the larger one, so that both need not fit
        gpu.memory = device::make_device_memory(bytes);
        gpu.bytes = bytes;
        // Zeros stay zeros however often they are summed.
        device::check(cudaMemsetAsync(gpu.memory.get(), 0, bytes, gpu.stream.get()), "cudaMemsetAsync");
        device::check(cudaStreamSynchronize(gpu.stream.get()), "cudaStreamSynchronize");
      }
      if ((task.operation == HostToDevice || task.operation == DeviceToHost) && gpu.host_bytes < bytes) {
        gpu.host = {};
        gpu.host = device::make_pinned_memory(bytes);
        gpu.host_bytes = bytes;
      }
    }
  }

  void connect(const std::vector<Wanted>& wanted) {
    if (wanted == connected_) return;
    disconnect();
    for (const Wanted& group : wanted) {
      const std::string& name = names_.emplace_back(
          fmt::format("{} of devices {}", group.use == channel::NcclUse::Edge ? "messages" : "reductions",
                      fmt::join(group.members, ", ")));
      ncclUniqueId id{};
      device::check(ncclGetUniqueId(&id), "ncclGetUniqueId");
      ncclConfig_t config = channel::nccl_config(group.use, channel::NcclOptions::kMostCtas, name.c_str());
      config.blocking = 1;  // that changes which thread enqueues a transfer, not the transfer
      std::vector<ncclComm_t>& ends = communicators_.emplace_back(group.members.size());
      device::check(ncclGroupStart(), "ncclGroupStart");
      for (std::size_t i = 0; i < ends.size(); ++i) {
        const device::DeviceGuard guard(group.members[i]);
        device::check(ncclCommInitRankConfig(&ends[i], to_int(ends.size()), id, to_int(i), &config),
                      "ncclCommInitRankConfig");
      }
      device::check(ncclGroupEnd(), "ncclGroupEnd");
    }
    connected_ = wanted;
  }

  void disconnect() noexcept {
    std::vector<ncclComm_t> all;
    for (const auto& ends : communicators_) std::ranges::copy_if(ends, std::back_inserter(all), std::identity());
    channel::abort_together(all);
    communicators_.clear();
    names_.clear();
    connected_.clear();
  }

  std::vector<double> times_of(const LinkTask& task, int rank, const Gpu& gpu, std::int64_t samples,
                               std::int64_t batch) {
    const device::DeviceGuard guard(gpu.device);
    std::vector<device::CudaEvent> events;
    for (std::int64_t i = 0; i <= samples; ++i) events.push_back(device::make_event());
    const cudaStream_t stream = gpu.stream.get();
    const device::CudaEvent order = device::make_order_event();
    const auto wait_for = [&](const device::CudaStream& waiting, const device::CudaStream& other) {
      device::check(cudaEventRecord(order.get(), other.get()), "cudaEventRecord");
      device::check(cudaStreamWaitEvent(waiting.get(), order.get(), 0), "cudaStreamWaitEvent");
    };
    enqueue(task, rank, gpu);
    wait_for(gpu.stream, gpu.second);
    device::check(cudaEventRecord(events.front().get(), stream), "cudaEventRecord");
    for (std::int64_t sample = 0; sample < samples && !failed_; ++sample) {
      wait_for(gpu.second, gpu.stream);
      for (std::int64_t i = 0; i < batch; ++i) enqueue(task, rank, gpu);
      wait_for(gpu.stream, gpu.second);
      device::check(cudaEventRecord(events[to_index(sample) + 1].get(), stream), "cudaEventRecord");
    }
    wait(stream, gpu.device, rank, task);
    const bool there_and_back = task.ranks > 1 && (task.operation == SendReceive || task.operation == Pairs);
    std::vector<double> out;
    for (std::size_t i = 1; i < events.size(); ++i) {
      float milliseconds = 0;
      device::check(cudaEventElapsedTime(&milliseconds, events[i - 1].get(), events[i].get()), "cudaEventElapsedTime");
      out.push_back(milliseconds * 1e-3 / (static_cast<double>(batch) * (there_and_back ? 2 : 1)));
    }
    return out;
  }

  /// One `task` on the stream of the GPU that has `rank` in the communicator.
  void enqueue(const LinkTask& task, int rank, const Gpu& gpu) {
    const cudaStream_t stream = gpu.stream.get();
    auto* values = static_cast<float*>(gpu.memory.get());
    const auto bytes = to_index(task.bytes.value);
    const std::size_t count = bytes / sizeof(float);
    const std::size_t members = to_index(task.ranks);
    const std::size_t share = (count + members - 1) / members;
    float* other = values + share * members;
    // In place, as gradients are reduced, except for one rank, which would have nothing to do.
    float* part = task.ranks == 1 ? other : values + share * to_index(rank);
    // Ranks 2p and 2p + 1 are a pair: communicators 2p and 2p + 1 carry messages of the even and of the odd one.
    const std::size_t pair = to_index(rank / 2 * 2);
    const std::size_t place = to_index(rank % 2);
    const auto send = [&] {
      device::check(ncclSend(values, count, ncclFloat, 1, communicators_[pair + place][0], stream), "ncclSend");
    };
    const auto receive = [&](cudaStream_t on) {
      device::check(ncclRecv(other, count, ncclFloat, 0, communicators_[pair + 1 - place][1], on), "ncclRecv");
    };
    const auto communicator = [&] { return communicators_.front()[to_index(rank)]; };
    switch (task.operation) {
      case SendReceive:
      case Pairs:
        if (task.ranks == 1) {
          device::check(ncclGroupStart(), "ncclGroupStart");
          device::check(ncclSend(values, count, ncclFloat, 0, communicator(), stream), "ncclSend");
          device::check(ncclRecv(other, count, ncclFloat, 0, communicator(), stream), "ncclRecv");
          device::check(ncclGroupEnd(), "ncclGroupEnd");
        } else if (place == 0) {
          send();
          receive(stream);
        } else {
          receive(stream);
          send();
        }
        return;
      case Duplex:
        device::check(ncclGroupStart(), "ncclGroupStart");
        send();
        receive(gpu.second.get());
        device::check(ncclGroupEnd(), "ncclGroupEnd");
        return;
      case AllReduce:
        return device::check(
            ncclAllReduce(values, task.ranks == 1 ? other : values, count, ncclFloat, ncclSum, communicator(), stream),
            "ncclAllReduce");
      case AllGather:
        return device::check(ncclAllGather(part, values, share, ncclFloat, communicator(), stream), "ncclAllGather");
      case ReduceScatter:
        return device::check(ncclReduceScatter(values, part, share, ncclFloat, ncclSum, communicator(), stream),
                             "ncclReduceScatter");
      case HostToDevice:
        return device::check(cudaMemcpyAsync(values, gpu.host.get(), bytes, cudaMemcpyHostToDevice, stream),
                             "cudaMemcpyAsync");
      case DeviceToHost:
        return device::check(cudaMemcpyAsync(gpu.host.get(), values, bytes, cudaMemcpyDeviceToHost, stream),
                             "cudaMemcpyAsync");
    }
  }

  /// Returns when all on `stream` is done; never blocks in the driver, so that a lost rank shows.
  void wait(cudaStream_t stream, int device, int rank, const LinkTask& task) {
    const auto end = std::chrono::steady_clock::now() + deadline_;
    while (true) {
      const cudaError_t status = cudaStreamQuery(stream);
      if (status == cudaSuccess) return;
      if (status != cudaErrorNotReady) device::check(status, "cudaStreamQuery");
      if (failed_) throw DeviceError("another rank failed");
      for (std::size_t c = 0; c < connected_.size(); ++c) {
        const auto& members = connected_[c].members;
        const auto place = std::ranges::find(members, device) - members.begin();
        if (place == std::ssize(members)) continue;
        ncclResult_t result = ncclSuccess;
        device::check(ncclCommGetAsyncError(communicators_[c][to_index(place)], &result), "ncclCommGetAsyncError");
        if (result != ncclInProgress) device::check(result, curve_name(task.operation, task.ranks).c_str());
      }
      if (std::chrono::steady_clock::now() > end) {
        throw DeviceError(fmt::format("rank {} did not finish {} of {} bytes within {} ms", rank,
                                      curve_name(task.operation, task.ranks), task.bytes.value, deadline_.count()));
      }
      std::this_thread::yield();
    }
  }

  std::chrono::milliseconds deadline_;
  std::vector<Gpu> gpus_;
  std::vector<Wanted> connected_;                       ///< one set at a time, as each takes memory
  std::deque<std::string> names_;                       ///< by connected_
  std::vector<std::vector<ncclComm_t>> communicators_;  ///< by connected_, then by member
  std::atomic<bool> failed_ = false;
};

}  // namespace

std::unique_ptr<LinkMeter> make_nccl_meter(std::optional<int> ranks, std::chrono::milliseconds deadline) {
  device::ask_for_queues();
  const int gpus = gpu_count();
  if (ranks && (*ranks < 1 || *ranks > gpus))
    throw std::invalid_argument(fmt::format("the number of ranks is {}, must be 1 to {}, one per GPU", *ranks, gpus));
  return std::make_unique<NcclMeter>(ranks.value_or(gpus), deadline);
}

}  // namespace stagecraft::profiler
