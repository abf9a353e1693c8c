#pragma once

#include <map>
#include <string>

#include "costmodel/units.h"

namespace stagecraft::device {

/// The model of this machine's processor, "AMD EPYC 9654 96-Core Processor"; "unknown processor" if Linux does not
/// report it.
[[nodiscard]] std::string processor_name();

/// The memory of this machine, used or not.
[[nodiscard]] Bytes machine_memory();

/// The second-level cache of one core; 0 if Linux does not report it.
[[nodiscard]] Bytes core_cache();

/// The text of a file that Linux provides, as in /proc; empty if it cannot be read.
[[nodiscard]] std::string system_text(const char* path);

/// What determines which CPU kernels LibTorch runs, and so the last bits of their results: "processor";
/// "cpu_capability", the instruction set that ATen uses (DEFAULT, AVX2, AVX512); "torch", LibTorch's version; and
/// "kernel_settings", the environment variables that limit oneDNN or MKL, empty if none is set. A record of training
/// carries the same keys.
[[nodiscard]] std::map<std::string, std::string> cpu_kernels();

}  // namespace stagecraft::device
