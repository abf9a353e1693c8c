#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "costmodel/errors.h"
#include "executor/device/cuda_handles.h"
#include "executor/device/device.h"

namespace stagecraft::device {
namespace {

std::string dotted(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

std::optional<std::string> no_gpu_reason() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return {};
  int driver = 0;
  int runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  const std::string found = fmt::format("no usable GPU ({}: {})", cudaGetErrorName(status), cudaGetErrorString(status));
  if (driver == 0) {
    return found + "; no NVIDIA driver was found: install one, start the container with the GPU, or use --device cpu";
  }
  if (status == cudaErrorInsufficientDriver) {
    return fmt::format(
        "{}; the driver supports CUDA {}, {} or newer is required: update the driver, or use --device cpu", found,
        dotted(driver), dotted(runtime));
  }
  return found + "; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu";
}

int gpu_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

GpuProperties gpu_properties(int index) {
  if (const auto reason = no_gpu_reason()) throw DeviceError(ErrorKind::NoGpu, *reason);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  GpuProperties out;
  out.name = properties.name;
  for (const char byte : properties.uuid.bytes) out.uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  out.driver = dotted(driver);
  out.memory = Bytes(static_cast<std::int64_t>(properties.totalGlobalMem));
  out.l2_bytes = Bytes(properties.l2CacheSize);
  return out;
}

}  // namespace stagecraft::device
