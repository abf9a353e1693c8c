#include "costmodel/errors.h"
#include "profiler/kernels/trace.h"
#include "profiler/layers/isolated.h"
#include "profiler/links/links.h"

// What needs CUDA, in a build without it.

namespace stagecraft::profiler {
namespace {

class NoGate : public StreamGate {
 public:
  void close() override {}
  void open() override {}
};

}  // namespace

std::unique_ptr<StreamGate> make_stream_gate(c10::Device) { return std::make_unique<NoGate>(); }

std::unique_ptr<KernelTracer> make_cupti_tracer() {
  throw DeviceError(
      ErrorKind::NotInBuild,
      "this program was built without CUDA and cannot trace kernels; build with -DSTAGECRAFT_WITH_CUDA=ON");
}

std::unique_ptr<LinkMeter> make_nccl_meter(std::optional<int>, std::chrono::milliseconds) {
  throw DeviceError(
      ErrorKind::NotInBuild,
      "this program was built without NCCL: build with -DSTAGECRAFT_WITH_CUDA=ON, or measure processors with "
      "--channel gloo");
}

}  // namespace stagecraft::profiler
