#include <c10/core/impl/VirtualGuardImpl.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "costmodel/errors.h"
#include "profiler/stream_gate.h"

namespace stagecraft::profiler {
namespace {

constexpr std::chrono::milliseconds kLongest{50};

class NoGate : public StreamGate {
 public:
  void close() override {}
  void open() override {}
};

/// A host function in the stream that returns when the gate opens.
class CudaGate : public StreamGate {
 public:
  explicit CudaGate(c10::Device device) : device_(device) {}
  ~CudaGate() override {
    open();
    std::unique_lock lock(mutex_);
    left_.wait(lock, [&] { return inside_ == 0; });
  }
  CudaGate(const CudaGate&) = delete;
  CudaGate& operator=(const CudaGate&) = delete;

  void close() override {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    auto* const stream = static_cast<cudaStream_t>(guard.getStreamNativeHandle(guard.getStream(device_)));
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      ++inside_;
    }
    const cudaError_t status =
        cudaLaunchHostFunc(stream, [](void* self) { static_cast<CudaGate*>(self)->hold(); }, this);
    if (status == cudaSuccess) return;
    const std::lock_guard lock(mutex_);
    --inside_;
    throw DeviceError(std::string("cudaLaunchHostFunc failed with ") + cudaGetErrorName(status) + ": " +
                      cudaGetErrorString(status));
  }
  void open() override {
    {
      const std::lock_guard lock(mutex_);
      closed_ = false;
    }
    opened_.notify_all();
  }

 private:
  void hold() {
    std::unique_lock lock(mutex_);
    opened_.wait_for(lock, kLongest, [&] { return !closed_; });
    --inside_;
    left_.notify_all();
  }
  c10::Device device_;
  std::mutex mutex_;
  std::condition_variable opened_;
  std::condition_variable left_;
  bool closed_ = false;
  int inside_ = 0;
};

}  // namespace

std::unique_ptr<StreamGate> make_stream_gate(c10::Device device) {
  if (device.is_cpu()) return std::make_unique<NoGate>();
  return std::make_unique<CudaGate>(device);
}

}  // namespace stagecraft::profiler
