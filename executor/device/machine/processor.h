#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "costmodel/conditions.h"
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

// How much of this host's processors the ranks use, and how much others take.

/// Processor time of all programs on `processors` since the machine started: user, nice, system, irq, softirq and steal
/// of their lines in `stat`, the text of Linux's /proc/stat (see proc(5)), which counts `ticks_per_second`. Absent if
/// the text lacks one of these lines.
[[nodiscard]] std::optional<Seconds> busy_time(const std::string& stat, double ticks_per_second,
                                               const std::set<int>& processors);

/// The numbers of the processors on which this process may run.
[[nodiscard]] std::set<int> own_processors();

/// Processor time of all threads of this process since it started, in user and system mode.
[[nodiscard]] Seconds process_time();

/// Processor time used up to one moment.
struct ProcessorMoment {
  Seconds clock;                   ///< of a steady clock
  Seconds process;                 ///< process_time
  std::optional<Seconds> machine;  ///< busy_time of own_processors; absent if /proc/stat cannot be read
};
[[nodiscard]] ProcessorMoment processor_moment();

/// What one process used between two moments. Any number of ranks may be in it.
struct ProcessorReport {
  std::uint64_t host = 0;     ///< equal for processes of one host that may run on the same processors
  std::uint64_t process = 0;  ///< equal for ranks of one process
  Seconds lasted;
  Seconds process_time;
  std::optional<Seconds> machine_time;
  int processors = 1;
};
[[nodiscard]] ProcessorReport processor_report(const ProcessorMoment& before, const ProcessorMoment& after);

/// Shortest measurement that processor_use can judge: /proc/stat counts ticks of 10 ms on each processor.
inline constexpr Seconds kShortestUse{0.5};

/// The use of each host, by its first report. The machine's time and the duration are those of a host's first report;
/// `ours` is the time of all its processes, each counted once. Without hosts that cannot tell or whose first report is
/// shorter than kShortestUse.
[[nodiscard]] std::vector<ProcessorUse> processor_use(std::span<const ProcessorReport> reports);

}  // namespace stagecraft::device
