#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace stagecraft::profiler {

/// Whether a call puts kernels, copies or memsets on a device: launches, copies, memsets and launches of CUDA graphs,
/// in all variants. Not host functions, and not calls that describe the nodes of a graph. `name` is CUPTI's name of the
/// call: "cudaLaunchKernel_ptsz_v7000" of the runtime, "cuMemcpyHtoDAsync_v2" of the driver.
[[nodiscard]] bool launches_work(std::string_view name);

/// Ids of the calls that launch no work, ascending, as libcupti numbers them. Needs no driver.
[[nodiscard]] std::vector<std::uint32_t> quiet_runtime_calls();
[[nodiscard]] std::vector<std::uint32_t> quiet_driver_calls();

}  // namespace stagecraft::profiler
