#include "costmodel/errors.h"
#include "profiler/links/links_nccl.h"

namespace stagecraft::profiler {

std::unique_ptr<LinkMeter> make_nccl_meter(std::optional<int>, std::chrono::milliseconds) {
  throw DeviceError(
      ErrorKind::NotInBuild,
      "this program was built without NCCL: build with -DSTAGECRAFT_WITH_CUDA=ON, or measure processors with "
      "--channel gloo");
}

}  // namespace stagecraft::profiler
