#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "costmodel/units.h"
#include "executor/device/machine/processor_use.h"
#include "profiler/concurrent_time.h"
#include "profiler/subject/time_limit.h"

namespace stagecraft::profiler {

/// What rounds of concurrent ranks measured.
struct RankRounds {
  std::vector<double> slowdown;  ///< see slowdown_of; shorter than the number of ranks if time was up
  /// The use of the processors in the last round, if other programs disturbed every round.
  std::optional<device::ProcessorReport> disturbed;
  Seconds other_processes_time;  ///< see ConcurrentRanks
};

/// Rounds in which 1, 2, ... `most` concurrent ranks take turns, so that a change of the machine's speed hits all
/// alike: as many as it takes until other programs left five undisturbed, ten at most, while `limit` leaves time for
/// iterations that take `iteration`. `start` starts the ranks, if there is time for one. `begin_turn` is called right
/// before each turn. `now` tells which processor time is used up.
[[nodiscard]] RankRounds run_rank_rounds(
    const std::function<std::unique_ptr<ConcurrentRanks>()>& start, int most, Seconds iteration, const TimeLimit& limit,
    const std::function<void(int count)>& begin_turn,
    const std::function<device::ProcessorMoment()>& now = device::processor_moment);

}  // namespace stagecraft::profiler
