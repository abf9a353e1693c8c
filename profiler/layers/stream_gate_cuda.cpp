#include <c10/core/impl/VirtualGuardImpl.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "costmodel/errors.h"
#include "profiler/layers/isolated.h"

namespace stagecraft::profiler {
namespace {

constexpr std::chrono::milliseconds kLongest{50};

class NoGate : public StreamGate {
 public:
  void close() override {}
  void open() override {}
};

/// What a gate and its host functions in the stream share. CUDA may call one after the gate is gone, or never: not
/// after an error of the context. Its share is then lost, which is once, since the device does not compute again.
class Latch {
 public:
  void close() { set(true); }
  void open() {
    set(false);
    opened_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    opened_.wait_for(lock, kLongest, [&] { return !closed_; });
  }

 private:
  void set(bool closed) {
    const std::lock_guard lock(mutex_);
    closed_ = closed;
  }
  std::mutex mutex_;
  std::condition_variable opened_;
  bool closed_ = false;
};
using SharedLatch = std::shared_ptr<Latch>;

/// A host function in the stream that returns when the gate opens.
class CudaGate : public StreamGate {
 public:
  explicit CudaGate(c10::Device device) : device_(device) {}
  ~CudaGate() override { latch_->open(); }
  CudaGate(const CudaGate&) = delete;
  CudaGate& operator=(const CudaGate&) = delete;

  void close() override {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    auto* const stream = static_cast<cudaStream_t>(guard.getStreamNativeHandle(guard.getStream(device_)));
    latch_->close();
    SharedLatch* const share = std::make_unique<SharedLatch>(latch_).release();  // the host function's
    const cudaError_t status = cudaLaunchHostFunc(
        stream, [](void* data) { (*std::unique_ptr<SharedLatch>(static_cast<SharedLatch*>(data)))->wait(); }, share);
    if (status == cudaSuccess) return;
    const std::unique_ptr<SharedLatch> refused(share);
    throw DeviceError(std::string("cudaLaunchHostFunc failed with ") + cudaGetErrorName(status) + ": " +
                      cudaGetErrorString(status));
  }
  void open() override { latch_->open(); }

 private:
  c10::Device device_;
  SharedLatch latch_ = std::make_shared<Latch>();
};

}  // namespace

std::unique_ptr<StreamGate> make_stream_gate(c10::Device device) {
  if (device.is_cpu()) return std::make_unique<NoGate>();
  return std::make_unique<CudaGate>(device);
}

}  // namespace stagecraft::profiler
