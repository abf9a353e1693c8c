#include "profiler/rank_rounds.h"

#include <algorithm>
#include <utility>

#include "costmodel/conditions.h"
#include "costmodel/index.h"

namespace stagecraft::profiler {
namespace {

/// Rounds that other programs did not disturb.
constexpr int kRounds = 5;
/// Processors that other programs keep busy, above which they disturb a round.
constexpr double kDisturbing = 0.1;
/// Rounds at most, if other programs disturb some of them.
constexpr int kMostRounds = 2 * kRounds;

bool is_disturbed(const device::ProcessorReport& use) {
  return std::ranges::any_of(device::processor_use({&use, 1}),
                             [](const ProcessorUse& host) { return host.others > kDisturbing; });
}

}  // namespace

RankRounds run_rank_rounds(const std::function<std::unique_ptr<ConcurrentRanks>()>& start, int most, Seconds iteration,
                           const TimeLimit& limit, const std::function<void(int count)>& begin_turn,
                           const std::function<device::ProcessorMoment()>& now) {
  RankRounds out;
  // A turn is a warm-up and a sample at least, of ranks that at worst wait for each other.
  const auto has_time = [&](int count) { return limit.left() >= 2 * count * iteration.value; };
  if (!has_time(1)) return out;  // starting ranks takes time
  const std::unique_ptr<ConcurrentRanks> ranks = start();
  std::vector<RoundOfRanks> rounds;
  device::ProcessorReport use;  // of the last round
  const auto quiet = [&] { return to_int(std::ranges::count(rounds, false, &RoundOfRanks::is_disturbed)); };
  while (quiet() < kRounds && to_int(rounds.size()) < kMostRounds) {
    RoundOfRanks round;
    const device::ProcessorMoment before = now();
    const Seconds processes_before = ranks->other_processes_time();
    int turns = (kRounds - quiet()) * most;
    for (int count = 1; count <= most && has_time(count); ++count) {
      begin_turn(count);
      round.times.push_back(ranks->time(count, limit.left() / turns--));
    }
    if (round.times.empty()) break;
    use = device::processor_report(before, now());
    use.process_time += ranks->other_processes_time() - processes_before;
    round.is_disturbed = is_disturbed(use);
    rounds.push_back(std::move(round));
  }
  out.other_processes_time = ranks->other_processes_time();
  out.slowdown = slowdown_of(rounds);
  if (!rounds.empty() && quiet() == 0) out.disturbed = use;
  return out;
}

}  // namespace stagecraft::profiler
