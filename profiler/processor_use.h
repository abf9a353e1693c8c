#pragma once

#include <optional>
#include <string>

#include "costmodel/units.h"

namespace stagecraft::profiler {

/// How many of this machine's processors were busy, on average over a measurement.
struct ProcessorUse {
  double ours = 0;    ///< busy with what was measured
  double others = 0;  ///< busy with other programs, or taken by the hypervisor for other guests
  int count = 1;      ///< all processors of the machine
  friend bool operator==(const ProcessorUse&, const ProcessorUse&) = default;
};

/// Whether other programs slowed down what was measured: they used more than a tenth of a processor, and all programs
/// together more than 95 % of all processors.
[[nodiscard]] bool is_crowded(const ProcessorUse& use);

/// Processor time of all programs since the machine started: user, nice, system, irq, softirq and steal in `stat`, the
/// text of Linux's /proc/stat (see proc(5)), which counts `ticks_per_second`. Absent if the text has no such line.
[[nodiscard]] std::optional<Seconds> busy_time(const std::string& stat, double ticks_per_second);
/// The same for this machine, now. Absent if /proc/stat cannot be read.
[[nodiscard]] std::optional<Seconds> machine_time();

/// Processor time of all threads of this process since it started, in user and system mode.
[[nodiscard]] Seconds process_time();

}  // namespace stagecraft::profiler
