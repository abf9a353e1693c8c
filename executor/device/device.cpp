#include "executor/device/device.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/text/number.h"

namespace stagecraft::device {
void ask_for_queues() { ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0); }

const std::vector<std::string>& device_names() {
  static const std::vector<std::string> names{"cpu", "cuda"};
  return names;
}

std::optional<std::string> load_cuda_libraries() {
  // Kernels and allocator of LibTorch's CUDA libraries register themselves when loaded.
  if (!::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL)) {
    return std::string("cannot load LibTorch's CUDA libraries: ") + ::dlerror() +
           "; use the CUDA wheel of torch, or --device cpu";
  }
  if (!at::detail::getCUDAHooks().hasCUDART()) {
    return "a bug in this program: it computed on the CPU before it loaded LibTorch's CUDA libraries (prepare_device), "
           "and LibTorch then uses no GPU until the program ends";
  }
  return std::nullopt;
}

void prepare_device(const std::string& name) {
  if (!name.starts_with("cuda")) return;
  ask_for_queues();  // before the first call of CUDA, which reads it
  if (gpu_count() > 0) (void)load_cuda_libraries();
}

c10::Device open_device(const std::string& name, bool allow) {
  if (name == "cpu") return {c10::kCPU};
  const std::size_t colon = name.find(':');
  if (name.substr(0, colon) != "cuda")
    throw InputError(ErrorKind::UnknownName, unknown_name("device", name, device_names()));
  const int index = colon == std::string::npos ? 0 : number_in<int>(name.substr(colon + 1)).value_or(-1);
  if (index < 0) throw std::invalid_argument("device \"" + name + "\": expected cuda or cuda:N with N from 0");
  ask_for_queues();
  if (const auto reason = no_gpu_reason()) throw DeviceError(ErrorKind::NoGpu, *reason);
  if (const auto reason = load_cuda_libraries()) throw DeviceError(ErrorKind::NoGpu, *reason);
  const c10::DeviceIndex count = at::accelerator::deviceCount();
  if (index >= count) {
    throw DeviceError(ErrorKind::NoGpu, "device \"" + name + "\" does not exist; this machine has cuda:0 to cuda:" +
                                            std::to_string(count - 1));
  }
  at::accelerator::setDeviceIndex(static_cast<c10::DeviceIndex>(index));
  allow_tf32(allow);
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

void allow_tf32(bool allowed) {
  // Not setFloat32Precision: cuBLAS refuses to compute once only that has been called.
  at::globalContext().setAllowTF32CuBLAS(allowed);
  at::globalContext().setAllowTF32CuDNN(allowed);
}

bool tf32_allowed() { return at::globalContext().allowTF32CuBLAS() || at::globalContext().allowTF32CuDNN(); }

OwnStream::OwnStream(c10::Device device) {
  if (device.is_cpu()) return;
  at::accelerator::setDeviceIndex(device.index());
  before_ = at::accelerator::getCurrentStream(device.index());
  at::accelerator::setCurrentStream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
}

OwnStream::~OwnStream() {
  if (before_) at::accelerator::setCurrentStream(*before_);
}

void synchronize(c10::Device device) {
  if (device.type() != c10::kCPU) at::accelerator::synchronizeDevice(device.index());
}

}  // namespace stagecraft::device
