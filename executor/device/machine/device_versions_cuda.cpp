#include <cupti.h>

#include <cstdint>
#include <string>

#include "costmodel/index.h"
#include "executor/device/cuda_handles.h"
#include "executor/device/machine/device_versions.h"

namespace stagecraft::device {
namespace {

std::string dotted(int major, int minor) { return std::to_string(major) + "." + std::to_string(minor); }

/// From the numbers of the libraries: 1000 major + 10 minor of the runtime; 10000 major + 100 minor + update of CUPTI
/// (from CUDA 13 on); 10000 major + 100 minor + patch of NCCL.
std::map<std::string, std::string> named(int runtime, int cupti, int nccl) {
  return {{"cuda runtime", dotted(runtime / 1000, runtime % 1000 / 10)},
          {"cupti", dotted(cupti / 10000, cupti / 100 % 100)},
          {"nccl", dotted(nccl / 10000, nccl / 100 % 100) + "." + std::to_string(nccl % 100)}};
}

}  // namespace

std::map<std::string, std::string> device_library_versions() {
  int runtime = 0;
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  std::uint32_t cupti = 0;
  if (const CUptiResult status = cuptiGetVersion(&cupti); status != CUPTI_SUCCESS)
    throw DeviceError("cuptiGetVersion: CUptiResult " + std::to_string(static_cast<int>(status)));
  int nccl = 0;
  check(ncclGetVersion(&nccl), "ncclGetVersion");
  return named(runtime, to_int(cupti), nccl);
}

std::map<std::string, std::string> compiled_device_library_versions() {
  return named(CUDART_VERSION, CUPTI_API_VERSION, NCCL_VERSION_CODE);
}

}  // namespace stagecraft::device
