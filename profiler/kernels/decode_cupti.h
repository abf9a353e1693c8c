#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "profiler/kernels/trace.h"

namespace stagecraft {

/// What CUPTI's activity buffers hold: concurrent kernels, copies (peer to peer too), sets, runtime, driver and
/// internal launch calls, external ids of kind CUSTOM0, overhead, synchronisation, environment. Each buffer starts on 8
/// bytes and is as long as CUPTI said it is valid. Records of other kinds, and a record that cannot be read with all
/// behind it, count as unknown. Needs libcupti for the records' lengths, but no driver. Pure but for one thing: memory
/// that an overhead record owns is freed.
[[nodiscard]] KernelTrace decode_cupti(const std::vector<std::span<const std::byte>>& buffers);

}  // namespace stagecraft
