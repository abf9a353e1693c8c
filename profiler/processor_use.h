#pragma once

#include <optional>
#include <string>

#include "costmodel/units.h"

namespace stagecraft {

/// How much of this machine's processors was in use, on average over a measurement.
struct ProcessorUse {
  double ours = 0;    ///< processors busy with what was measured
  double others = 0;  ///< processors busy with other programs, or taken by the hypervisor for other guests
  int count = 1;      ///< processors of the machine
  friend bool operator==(const ProcessorUse&, const ProcessorUse&) = default;
};

/// Whether others kept what was measured waiting: they used more than a tenth of a processor, and together with ours
/// more than 95 % of all.
[[nodiscard]] bool is_crowded(const ProcessorUse& use);

/// Processor time of all programs since the machine started, from the text of Linux's /proc/stat with
/// `ticks_per_second`: user, nice, system, irq, softirq and steal (proc(5)). Absent if the text has no such line.
[[nodiscard]] std::optional<Seconds> busy_time(const std::string& stat, double ticks_per_second);
/// The same of this machine, now. Absent where /proc/stat cannot be read.
[[nodiscard]] std::optional<Seconds> machine_time();

/// Processor time of this process since its start, all threads, in user and system mode.
[[nodiscard]] Seconds process_time();

}  // namespace stagecraft
