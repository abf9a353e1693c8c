#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "profiler/kernels/trace.h"

namespace stagecraft::profiler {

/// The records in CUPTI's activity buffers: concurrent kernels, copies (peer-to-peer copies too), memsets, runtime,
/// driver and internal launch calls, external ids of kind CUSTOM0, overhead, synchronisation, environment. Each buffer
/// must be aligned to 8 bytes and have the length that CUPTI reported as valid. Records of other kinds count as
/// unknown; so does a record that cannot be read, together with everything after it in the buffer. Needs libcupti for
/// the records' lengths, but no driver. The only side effect: memory owned by overhead records is freed.
[[nodiscard]] KernelTrace decode_cupti(const std::vector<std::span<const std::byte>>& buffers);

}  // namespace stagecraft::profiler
