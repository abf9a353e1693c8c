#include <cupti.h>

#include "profiler/kernels/cupti_calls.h"

namespace stagecraft::profiler {
namespace {

std::vector<std::uint32_t> quiet_calls(CUpti_CallbackDomain domain) {
  std::vector<std::uint32_t> out;
  const char* name = nullptr;
  // Numbered without gaps from 1.
  for (std::uint32_t id = 1; cuptiGetCallbackName(domain, id, &name) == CUPTI_SUCCESS; ++id) {
    if (!launches_work(name)) out.push_back(id);
  }
  return out;
}

}  // namespace

bool launches_work(std::string_view name) {
  // The API's prefix, and that of the 64-bit variants of CUDA 3.
  for (const std::string_view prefix : {"__", "cuda", "cu", "64"}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  if (name.starts_with("LaunchHostFunc")) return false;
  return name.starts_with("Launch") || name.starts_with("GraphLaunch") || name.starts_with("Memcpy") ||
         name.starts_with("Memset");
}

std::vector<std::uint32_t> quiet_runtime_calls() { return quiet_calls(CUPTI_CB_DOMAIN_RUNTIME_API); }
std::vector<std::uint32_t> quiet_driver_calls() { return quiet_calls(CUPTI_CB_DOMAIN_DRIVER_API); }

}  // namespace stagecraft::profiler
