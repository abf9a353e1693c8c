#include "executor/device/machine/provenance.h"

#include <torch/headeronly/version.h>

#include <ctime>
#include <stdexcept>
#include <string>
#include <thread>

#include "costmodel/index.h"
#include "costmodel/version.h"
#include "executor/device/device.h"
#include "executor/device/machine/allocator.h"
#include "executor/device/machine/device_versions.h"
#include "executor/device/machine/processor.h"

namespace stagecraft::device {
namespace {

std::string date() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

Provenance provenance_here(const std::string& tool, c10::Device device) {
  Provenance out;
  out.tool = tool + " " + version();
  out.device = processor_name() + ", " + std::to_string(std::thread::hardware_concurrency()) + " processors";
  out.versions = device_library_versions();
  out.versions["libtorch"] = TORCH_VERSION;
  out.versions["allocator"] = allocator_name();
  if (device.is_cpu()) out.versions["huge pages"] = huge_page_use();
  out.date = date();
  if (!device.is_cpu()) {
    const GpuProperties gpu = gpu_properties(device.index());
    out.notes = {{"processor", out.device},
                 {"uuid", gpu.uuid},
                 {"driver serves CUDA", gpu.driver},
                 {"TF32", tf32_allowed() ? "allowed" : "not allowed"}};
    out.device = gpu.name;
  }
  return out;
}

namespace {

int processors_here() { return to_int(std::thread::hardware_concurrency()); }

}  // namespace

Device device_here(int ranks) {
  if (ranks < 1)
    throw std::invalid_argument("the number of ranks is " + std::to_string(ranks) + ", must be at least 1");
  Device out{processor_name(), Bytes(machine_memory().value / ranks)};
  out.kind = DeviceKind::Processor;
  out.host_processors = processors_here();
  return out;
}

MeasuredDevice measured_device_here(c10::Device device) {
  if (device.is_cpu()) return {processor_name(), DeviceKind::Processor, processors_here()};
  return {gpu_properties(device.index()).name, DeviceKind::Gpu, processors_here()};
}

}  // namespace stagecraft::device
