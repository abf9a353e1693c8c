#include "costmodel/errors.h"
#include "executor/device/device.h"

namespace stagecraft::device {

std::optional<std::string> no_gpu_reason() {
  return "this program was built without CUDA; build with -DSTAGECRAFT_WITH_CUDA=ON, or use --device cpu";
}

int gpu_count() { return 0; }

GpuProperties gpu_properties(int) { throw DeviceError(ErrorKind::NoGpu, *no_gpu_reason()); }

}  // namespace stagecraft::device
