#include "profiler/provenance.h"

#include <torch/headeronly/version.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "costmodel/version.h"
#include "executor/device.h"
#include "executor/device_versions.h"

namespace stagecraft {
namespace {

std::string processor() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

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
  out.device = processor() + ", " + std::to_string(std::thread::hardware_concurrency()) + " processors";
  out.versions = device_library_versions();
  out.versions["libtorch"] = TORCH_VERSION;
  out.date = date();
  if (!device.is_cpu()) {
    const GpuProperties gpu = gpu_properties(device.index());
    out.notes = {{"processor", out.device}, {"uuid", gpu.uuid}, {"driver serves CUDA", gpu.driver}};
    out.device = gpu.name;
  }
  return out;
}

Device device_here(int ranks) {
  if (ranks < 1) throw std::invalid_argument("the number of ranks is " + std::to_string(ranks) + ", wanted at least 1");
  const Bytes memory = Bytes(::sysconf(_SC_PAGESIZE)) * ::sysconf(_SC_PHYS_PAGES);
  return {processor(), Bytes(memory.value / ranks)};
}

}  // namespace stagecraft
