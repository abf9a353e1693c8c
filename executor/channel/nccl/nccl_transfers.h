#pragma once

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/from_blob.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "executor/channel/collective.h"
#include "executor/channel/nccl_program.h"
#include "executor/device/cuda_handles.h"

// Parts of the NCCL channel: communicators with their streams and the operations in progress on them. Only for files
// that are built with CUDA.

namespace stagecraft::channel {

// Only for files that are built with CUDA.

/// Whether a communicator carries messages from one rank to another, or reduces.
enum class NcclUse { Edge, Reduction };

/// The configuration of every communicator, in a run and where links are measured: what is measured is what runs.
/// A transfer that waits for its peer occupies as many multiprocessors as it has thread blocks, so edges, many of which
/// wait at a time, get at most `most_ctas`; reductions get what NCCL chooses. `name` must outlive the communicator.
[[nodiscard]] inline ncclConfig_t nccl_config(NcclUse use, int most_ctas, const char* name) {
  ncclConfig_t out = NCCL_CONFIG_INITIALIZER;
  out.blocking = 0;  // otherwise nothing could abort a call that waits for a lost peer
  if (use == NcclUse::Edge) out.maxCTAs = most_ctas;
  out.commName = name;
  return out;
}

/// Ends all transfers of these communicators on this process and releases them. No other thread may be inside a call on
/// one of them. An abort waits for its communicator's stream, on which a send may wait for compute that waits for
/// another communicator: so all are aborted as a group, which waits for none before all have been told. The abort of a
/// communicator with a call under way also waits for that call: `busy` come last.
inline void abort_together(const std::vector<ncclComm_t>& idle, const std::vector<ncclComm_t>& busy = {}) noexcept {
  (void)ncclGroupStart();
  for (const auto* list : {&idle, &busy}) {
    for (const ncclComm_t communicator : *list) (void)ncclCommAbort(communicator);
  }
  (void)ncclGroupEnd();
}

/// The stream on which this thread computes. A CPU has none: simulated libraries interpret that as the host.
[[nodiscard]] inline cudaStream_t compute_stream(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  return static_cast<cudaStream_t>(at::accelerator::getCurrentStream(device.index()).native_handle());
}

/// Makes `device` current, if it is a GPU.
class CurrentGpu {
 public:
  explicit CurrentGpu(c10::Device device) {
    if (!device.is_cpu()) guard_.emplace(device.index());
  }

 private:
  std::optional<device::DeviceGuard> guard_;
};

/// A call of NCCL that was enqueued.
struct NcclOperation {
  device::CudaEvent ready = device::make_order_event();  ///< its inputs are ready
  device::CudaEvent done = device::make_order_event();
  const char* kind = "";
  int tag = 0;
  std::uint64_t number = 0;                     ///< on its communicator, from 1
  std::chrono::steady_clock::time_point since;  ///< since it has been the first unfinished one
};

/// Reusable memory for received tensors of one tag.
struct NcclPool {
  struct Slot {
    at::Tensor memory;
    device::CudaEvent free;         ///< its last reader is done
    cudaStream_t reader = nullptr;  ///< on which it is read, once it was waited for
  };
  explicit NcclPool(c10::Device d) : device(d) {}
  c10::Device device;
  std::mutex mutex;
  std::vector<std::unique_ptr<Slot>> idle;
  std::vector<std::unique_ptr<Slot>> abandoned;  ///< of receives that failed: transfers and kernels may still use them

  /// The thread that drops the last reference returns the slot, after all readers are enqueued. Another thread computes
  /// on another stream, so the slot knows the readers' one.
  static void give_back(const std::shared_ptr<NcclPool>& pool, Slot* slot) noexcept {
    std::unique_ptr<Slot> returned(slot);
    try {
      const CurrentGpu guard(pool->device);
      device::check(cudaEventRecord(returned->free.get(), returned->reader), "cudaEventRecord");
      const std::lock_guard lock(pool->mutex);
      pool->idle.push_back(std::move(returned));
    } catch (const std::exception&) {  // the device is lost: the memory is not reused
    }
  }
};

/// A slot that a receive has taken. If it is never returned, its memory stays allocated until the pool is destroyed.
struct AbandonSlot {
  std::shared_ptr<NcclPool> pool;
  void operator()(NcclPool::Slot* slot) const {
    const std::lock_guard lock(pool->mutex);
    pool->abandoned.emplace_back(slot);
  }
};
using TakenSlot = std::unique_ptr<NcclPool::Slot, AbandonSlot>;

/// One communicator of this rank.
struct NcclLane {
  CommunicatorPlan plan;
  device::CudaStream stream;
  device::NcclCommunicator communicator;
  std::unordered_map<int, std::shared_ptr<NcclPool>> pools;  ///< by tag
  std::mutex mutex;                                          ///< of what follows
  std::deque<std::shared_ptr<NcclOperation>> pending;
  std::vector<std::shared_ptr<NcclOperation>> idle;
  std::uint64_t calls = 0;

  /// Releases finished operations. Needs the mutex and the device.
  void reap() {
    while (!pending.empty()) {
      const cudaError_t status = cudaEventQuery(pending.front()->done.get());
      if (status == cudaErrorNotReady) return;
      device::check(status, "cudaEventQuery");
      idle.push_back(std::move(pending.front()));
      pending.pop_front();
      if (!pending.empty()) pending.front()->since = std::chrono::steady_clock::now();
    }
  }
};

/// State that a channel shares with its transfers.
struct NcclLine {
  int rank = 0;
  c10::Device device{c10::kCPU};
  std::atomic<bool> aborted = false;
  std::mutex mutex;
  std::string reason;
  bool late = false;  ///< this rank found out

  void throw_if_aborted() {
    if (!aborted.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex);
    throw meeting::PeerError(reason, late ? meeting::PeerError::Cause::Deadline : meeting::PeerError::Cause::Peer);
  }
  /// Makes work that this thread enqueues from now on wait for `operation`.
  void order_after(const NcclOperation& operation) {
    throw_if_aborted();
    const CurrentGpu guard(device);
    device::check(cudaStreamWaitEvent(compute_stream(device), operation.done.get(), 0), "cudaStreamWaitEvent");
    throw_if_aborted();
  }
};

class NcclSending : public Sending {
 public:
  NcclSending(std::shared_ptr<NcclLine> line, std::shared_ptr<NcclOperation> operation, at::Tensor tensor)
      : line_(std::move(line)), operation_(std::move(operation)), tensor_(std::move(tensor)) {}
  bool done() override {
    line_->throw_if_aborted();
    const CurrentGpu guard(line_->device);
    const cudaError_t status = cudaEventQuery(operation_->done.get());
    if (status == cudaErrorNotReady) return false;
    device::check(status, "cudaEventQuery");
    return true;
  }
  void wait() override { line_->order_after(*operation_); }

 private:
  std::shared_ptr<NcclLine> line_;
  std::shared_ptr<NcclOperation> operation_;
  at::Tensor tensor_;
};

class NcclReceiving : public Receiving {
 public:
  NcclReceiving(std::shared_ptr<NcclLine> line, std::shared_ptr<NcclOperation> operation, TakenSlot slot,
                TensorSpec spec)
      : line_(std::move(line)), operation_(std::move(operation)), slot_(std::move(slot)), spec_(std::move(spec)) {}
  at::Tensor wait() override {
    line_->order_after(*operation_);
    NcclPool::Slot* slot = slot_.release();
    slot->reader = compute_stream(line_->device);
    return at::from_blob(
        slot->memory.data_ptr(), spec_.shape,
        [pool = slot_.get_deleter().pool, slot](void*) { NcclPool::give_back(pool, slot); },
        at::TensorOptions(spec_.dtype).device(line_->device), line_->device);
  }

 private:
  std::shared_ptr<NcclLine> line_;
  std::shared_ptr<NcclOperation> operation_;
  TakenSlot slot_;
  TensorSpec spec_;
};

/// One rank's part in a collective: calls of NCCL, and a sum once they are done.
struct NcclWork {
  CollectiveCall call;
  std::vector<at::Tensor> parts;     ///< of the values, by member
  std::size_t mine = 0;              ///< index of this rank among the members
  std::vector<at::Tensor> sent;      ///< by member, if values are exchanged by sends and receives
  std::vector<at::Tensor> arriving;  ///< likewise
  at::Tensor gathered;               ///< every member's values, if they are gathered and then summed
  std::vector<at::Tensor> terms;     ///< what is then summed, in order; none if NCCL's calls give the result
  at::Tensor sum;
};

class NcclCollective : public CollectiveInProgress {
 public:
  NcclCollective(std::shared_ptr<NcclLine> line, std::shared_ptr<NcclOperation> operation, NcclWork work)
      : line_(std::move(line)), operation_(std::move(operation)), work_(std::move(work)) {}
  void wait() override {
    line_->order_after(*operation_);
    if (!work_.terms.empty()) sum_in_order(work_.terms, work_.sum);
  }

 private:
  std::shared_ptr<NcclLine> line_;
  std::shared_ptr<NcclOperation> operation_;
  NcclWork work_;
};

}  // namespace stagecraft::channel
