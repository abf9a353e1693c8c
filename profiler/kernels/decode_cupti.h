#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "profiler/kernels/trace.h"

namespace stagecraft::profiler {

/// Whether a call puts kernels, copies or memsets on a device: launches, copies, memsets and launches of CUDA graphs,
/// in all variants. Not host functions, and not calls that describe the nodes of a graph. `name` is CUPTI's name of the
/// call: "cudaLaunchKernel_ptsz_v7000" of the runtime, "cuMemcpyHtoDAsync_v2" of the driver.
[[nodiscard]] bool launches_work(std::string_view name);

/// Ids of the calls that launch no work, ascending, as libcupti numbers them. Needs no driver.
[[nodiscard]] std::vector<std::uint32_t> quiet_runtime_calls();
[[nodiscard]] std::vector<std::uint32_t> quiet_driver_calls();

/// The records in CUPTI's activity buffers: concurrent kernels, copies (peer-to-peer copies too), memsets, runtime,
/// driver and internal launch calls, external ids of kind CUSTOM0, overhead, synchronisation, environment. Each buffer
/// must be aligned to 8 bytes and have the length that CUPTI reported as valid. Records of other kinds count as
/// unknown; so does a record that cannot be read, together with everything after it in the buffer. Needs libcupti for
/// the records' lengths, but no driver. The only side effect: memory owned by overhead records is freed.
[[nodiscard]] KernelTrace decode_cupti(const std::vector<std::span<const std::byte>>& buffers);

}  // namespace stagecraft::profiler
