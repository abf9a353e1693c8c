#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>

#include "costmodel/errors.h"

// Only for files that are built with CUDA.

namespace stagecraft::device {

/// "links_nccl_cuda.cpp:12".
[[nodiscard]] inline std::string place_text(const std::source_location& place) {
  const std::string_view path = place.file_name();
  return std::string(path.substr(path.find_last_of('/') + 1)) + ":" + std::to_string(place.line());
}

/// "cudaMalloc: cudaErrorMemoryAllocation (out of memory), at links_nccl_cuda.cpp:12".
[[nodiscard]] inline std::string refusal(const char* call, const std::string& code, const std::string& text,
                                         const std::source_location& place) {
  return std::string(call) + ": " + code + " (" + text + "), at " + place_text(place);
}

/// Throw DeviceError with call, code, text and place unless `status` is success.
inline void check(cudaError_t status, const char* call, std::source_location place = std::source_location::current()) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // otherwise the next call would report this error
  throw DeviceError(status == cudaErrorMemoryAllocation ? ErrorKind::OutOfMemory : ErrorKind::MachineFailure,
                    refusal(call, cudaGetErrorName(status), cudaGetErrorString(status), place));
}
inline void check(ncclResult_t status, const char* call, std::source_location place = std::source_location::current()) {
  if (status == ncclSuccess) return;
  const char* last = ncclGetLastError(nullptr);
  const std::string text = ncclGetErrorString(status);
  throw DeviceError(refusal(call, "ncclResult_t " + std::to_string(static_cast<int>(status)),
                            last && *last ? text + ": " + last : text, place));
}

/// The only owner of a `T`, released by `destroy`, whose result is ignored; an empty one owns nothing.
template <class T, auto destroy>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T handle) : handle_(handle) {}
  Handle(Handle&& other) noexcept : handle_(std::exchange(other.handle_, T{})) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Handle() {
    if (handle_) (void)destroy(handle_);
  }
  [[nodiscard]] T get() const { return handle_; }
  /// Gives ownership to the caller.
  [[nodiscard]] T release() { return std::exchange(handle_, T{}); }

 private:
  T handle_{};
};

using CudaStream = Handle<cudaStream_t, cudaStreamDestroy>;
using CudaEvent = Handle<cudaEvent_t, cudaEventDestroy>;
using DeviceMemory = Handle<void*, cudaFree>;
using PinnedMemory = Handle<void*, cudaFreeHost>;
/// Aborted instead of destroyed: destroying waits for operations that never end after another rank's failure.
using NcclCommunicator = Handle<ncclComm_t, ncclCommAbort>;

/// Makes `device` current on the calling thread while it exists.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    check(cudaSetDevice(device), "cudaSetDevice");
  }
  ~DeviceGuard() { (void)cudaSetDevice(before_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

// These create what they name on the calling thread's device; an error names the caller's source position.

/// A stream that does not wait for the default stream, and whose kernels run before those of other streams if the GPU
/// supports priorities.
[[nodiscard]] inline CudaStream make_urgent_stream(std::source_location place = std::source_location::current()) {
  int least = 0;
  int most = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &most), "cudaDeviceGetStreamPriorityRange", place);
  cudaStream_t out = nullptr;
  check(cudaStreamCreateWithPriority(&out, cudaStreamNonBlocking, most), "cudaStreamCreateWithPriority", place);
  return CudaStream(out);
}
/// An event that records time.
[[nodiscard]] inline CudaEvent make_event(std::source_location place = std::source_location::current()) {
  cudaEvent_t out = nullptr;
  check(cudaEventCreateWithFlags(&out, cudaEventDefault), "cudaEventCreateWithFlags", place);
  return CudaEvent(out);
}
/// An event that only orders streams.
[[nodiscard]] inline CudaEvent make_order_event(std::source_location place = std::source_location::current()) {
  cudaEvent_t out = nullptr;
  check(cudaEventCreateWithFlags(&out, cudaEventDisableTiming), "cudaEventCreateWithFlags", place);
  return CudaEvent(out);
}
[[nodiscard]] inline DeviceMemory make_device_memory(std::size_t bytes,
                                                     std::source_location place = std::source_location::current()) {
  void* out = nullptr;
  check(cudaMalloc(&out, bytes), "cudaMalloc", place);
  return DeviceMemory(out);
}
/// Of the host.
[[nodiscard]] inline PinnedMemory make_pinned_memory(std::size_t bytes,
                                                     std::source_location place = std::source_location::current()) {
  void* out = nullptr;
  check(cudaHostAlloc(&out, bytes, cudaHostAllocDefault), "cudaHostAlloc", place);
  return PinnedMemory(out);
}

}  // namespace stagecraft::device
