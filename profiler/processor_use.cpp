#include "profiler/processor_use.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <numeric>
#include <sstream>

namespace stagecraft::profiler {
namespace {

constexpr double kLeastOthers = 0.1;
constexpr double kMostUsed = 0.95;
constexpr double kMicro = 1e-6;

Seconds seconds_of(const timeval& time) {
  return Seconds(static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * kMicro);
}

}  // namespace

bool is_crowded(const ProcessorUse& use) {
  return use.others > kLeastOthers && use.ours + use.others > kMostUsed * use.count;
}

std::optional<Seconds> busy_time(const std::string& stat, double ticks_per_second) {
  std::istringstream in(stat);
  std::string name;
  std::array<double, 8> ticks{};  // user, nice, system, idle, iowait, irq, softirq, steal; user includes guests
  if (!(in >> name) || name != "cpu") return std::nullopt;
  for (double& each : ticks) {
    if (!(in >> each)) return std::nullopt;
  }
  const auto [user, nice, system, idle, iowait, irq, softirq, steal] = ticks;
  return Seconds((user + nice + system + irq + softirq + steal) / ticks_per_second);
}

std::optional<Seconds> machine_time() {
  std::ifstream in("/proc/stat");
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return busy_time(line, static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

Seconds process_time() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  return seconds_of(use.ru_utime) + seconds_of(use.ru_stime);
}

}  // namespace stagecraft::profiler
