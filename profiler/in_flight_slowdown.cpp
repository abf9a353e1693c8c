#include "profiler/in_flight_slowdown.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

#include "costmodel/timeline.h"

namespace stagecraft::profiler {
namespace {

/// More change little: the caches then hold almost nothing of the first one.
constexpr int kInFlight = 4;
constexpr double kFewestRounds = 1;
/// Enough for a model whose rounds take long.
constexpr double kEnoughRounds = 5;
/// Rounds of a small model: as many as take so long, and at most so many.
constexpr double kSeconds = 3;
constexpr double kMostRounds = 15;
constexpr std::int64_t kBytesPerKiB = 1024;

double seconds_of(Subject& subject, const std::vector<at::Tensor>& batch, bool in_flight) {
  StepTimer timer(c10::Device(c10::kCPU));
  subject.run_microbatches(batch, kInFlight, in_flight, timer);
  return timer.take().front();
}

}  // namespace

double in_flight_factor_of(const std::vector<InFlightRound>& rounds) {
  std::vector<double> ratios;
  for (const InFlightRound& round : rounds) ratios.push_back(round.in_flight / round.one_by_one);
  return std::max(1.0, median(std::move(ratios)));
}

std::optional<Bytes> available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  for (std::int64_t value = 0; file >> key >> value; file.ignore(80, '\n')) {
    if (key == "MemAvailable:") return Bytes(value * kBytesPerKiB);
  }
  return std::nullopt;
}

std::optional<InFlightSlowdown> measure_in_flight_slowdown(Subject& subject, const std::vector<at::Tensor>& batch,
                                                           Bytes saved, Seconds iteration, double seconds) {
  const double round_seconds = 2 * kInFlight * iteration.value;
  const double wanted = std::clamp(kSeconds / round_seconds, kEnoughRounds, kMostRounds);
  // Half a round is for a warm-up.
  const double fitting = std::min(wanted, seconds / round_seconds - 0.5);
  const std::optional<Bytes> available = available_memory();
  if (!(fitting >= kFewestRounds) || (available && 2 * kInFlight * saved > *available)) return std::nullopt;
  (void)seconds_of(subject, batch, true);
  std::vector<InFlightRound> rounds;
  while (static_cast<double>(rounds.size() + 1) <= fitting) {
    // The orders take turns in going first, so that a machine that becomes slower favours neither.
    InFlightRound& round = rounds.emplace_back();
    const bool first = rounds.size() % 2 == 0;
    for (const bool in_flight : {first, !first})
      (in_flight ? round.in_flight : round.one_by_one) = seconds_of(subject, batch, in_flight);
  }
  return InFlightSlowdown{kInFlight, in_flight_factor_of(rounds)};
}

}  // namespace stagecraft::profiler
