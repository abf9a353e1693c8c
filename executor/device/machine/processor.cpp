#include "executor/device/machine/processor.h"

#include <ATen/Version.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace stagecraft::device {

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

Bytes machine_memory() { return Bytes(::sysconf(_SC_PAGESIZE)) * ::sysconf(_SC_PHYS_PAGES); }

Bytes core_cache() { return Bytes(std::max(0L, ::sysconf(_SC_LEVEL2_CACHE_SIZE))); }

std::string system_text(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::map<std::string, std::string> cpu_kernels() {
  std::string settings;
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"}) {
    if (const char* value = std::getenv(name))
      settings += (settings.empty() ? "" : " ") + std::string(name) + "=" + value;
  }
  return {{"processor", processor_name()},
          {"cpu_capability", at::get_cpu_capability()},
          {"torch", TORCH_VERSION},
          {"kernel_settings", settings}};
}

}  // namespace stagecraft::device
