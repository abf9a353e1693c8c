#include "executor/device/machine/processor.h"

#include <ATen/Version.h>
#include <sched.h>
#include <sys/resource.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <sstream>
#include <utility>

#include "costmodel/index.h"

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

namespace {

constexpr double kMicro = 1e-6;

Seconds seconds_of(const timeval& time) {
  return Seconds(static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * kMicro);
}

/// The machine since it was started, the same in all of its containers, and the processors of this process.
std::uint64_t host_number() {
  std::string text = system_text("/proc/sys/kernel/random/boot_id");
  for (const int processor : own_processors()) text += " " + std::to_string(processor);
  return std::hash<std::string>()(text);
}

/// A random number: processes of several containers may have the same process id.
std::uint64_t process_number() {
  static const std::uint64_t number = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
  }();
  return number;
}

}  // namespace

std::optional<Seconds> busy_time(const std::string& stat, double ticks_per_second, const std::set<int>& processors) {
  std::istringstream in(stat);
  double busy = 0;
  std::size_t found = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (!name.starts_with("cpu") || name == "cpu" || !processors.contains(std::atoi(name.c_str() + 3))) continue;
    std::array<double, 8> ticks{};  // user, nice, system, idle, iowait, irq, softirq, steal; user includes guests
    for (double& count : ticks) {
      if (!(words >> count)) return std::nullopt;
    }
    const auto [user, nice, system, idle, iowait, irq, softirq, steal] = ticks;
    busy += user + nice + system + irq + softirq + steal;
    ++found;
  }
  if (found == 0 || found != processors.size()) return std::nullopt;
  return Seconds(busy / ticks_per_second);
}

std::set<int> own_processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::set<int> out;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return out;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(to_index(i), &allowed)) out.insert(i);
  }
  return out;
}

Seconds process_time() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  return seconds_of(use.ru_utime) + seconds_of(use.ru_stime);
}

ProcessorMoment processor_moment() {
  const auto clock = std::chrono::steady_clock::now().time_since_epoch();
  return {Seconds(std::chrono::duration<double>(clock).count()), process_time(),
          busy_time(system_text("/proc/stat"), static_cast<double>(::sysconf(_SC_CLK_TCK)), own_processors())};
}

ProcessorReport processor_report(const ProcessorMoment& before, const ProcessorMoment& after) {
  ProcessorReport out{host_number(),
                      process_number(),
                      after.clock - before.clock,
                      after.process - before.process,
                      {},
                      std::max(1, to_int(own_processors().size()))};
  if (before.machine && after.machine) out.machine_time = *after.machine - *before.machine;
  return out;
}

std::vector<ProcessorUse> processor_use(std::span<const ProcessorReport> reports) {
  struct HostTimes {
    const ProcessorReport* first;
    std::map<std::uint64_t, Seconds> time_of_process;
  };
  std::vector<HostTimes> hosts;
  for (const ProcessorReport& report : reports) {
    auto host = std::ranges::find(hosts, report.host, [](const HostTimes& h) { return h.first->host; });
    if (host == hosts.end()) host = hosts.insert(hosts.end(), {&report, {}});
    host->time_of_process.emplace(report.process, report.process_time);
  }
  std::vector<ProcessorUse> out;
  for (const HostTimes& host : hosts) {
    const Seconds lasted = host.first->lasted;
    if (!host.first->machine_time || lasted < kShortestUse) continue;
    Seconds ours;
    for (const auto& [process, time] : host.time_of_process) ours += time;
    out.push_back({ours / lasted, std::max(0.0, (*host.first->machine_time - ours) / lasted), host.first->processors});
  }
  return out;
}

}  // namespace stagecraft::device
