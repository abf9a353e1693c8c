#include "profiler/provenance.h"

#include <stdexcept>
#include <string>
#include <thread>

#include "costmodel/index.h"
#include "executor/device/device.h"
#include "executor/device/machine/processor.h"

namespace stagecraft::profiler {

namespace {

int processors_here() { return to_int(std::thread::hardware_concurrency()); }

}  // namespace

Device device_here(int ranks) {
  if (ranks < 1)
    throw std::invalid_argument("the number of ranks is " + std::to_string(ranks) + ", must be at least 1");
  Device out{device::processor_name(), Bytes(device::machine_memory().value / ranks)};
  out.kind = DeviceKind::Processor;
  out.host_processors = processors_here();
  return out;
}

MeasuredDevice measured_device_here(c10::Device device) {
  if (device.is_cpu()) return {device::processor_name(), DeviceKind::Processor, processors_here()};
  return {device::gpu_properties(device.index()).name, DeviceKind::Gpu, processors_here()};
}

}  // namespace stagecraft::profiler
