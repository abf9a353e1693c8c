#include "costmodel/errors.h"
#include "profiler/kernels/tracer.h"

namespace stagecraft::profiler {

std::unique_ptr<KernelTracer> make_cupti_tracer() {
  throw DeviceError(
      ErrorKind::NotInBuild,
      "this program was built without CUDA and cannot trace kernels; build with -DSTAGECRAFT_WITH_CUDA=ON");
}

}  // namespace stagecraft::profiler
