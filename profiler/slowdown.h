#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/units.h"
#include "executor/device/machine/processor.h"
#include "executor/model/model.h"
#include "profiler/profile_options.h"
#include "profiler/subject/subject.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {

/// Time of an iteration, from the seconds of all iterations of each rank. The median; if ranks share processors, the
/// number of ranks divided by the sum of their rates: a rank that has a processor to itself gives more and shorter
/// iterations than those that share one, and only rates add up to what the processors do.
[[nodiscard]] Seconds time_together(const std::vector<std::vector<double>>& samples, bool share_processors);

/// Whether `count` ranks with these options have more threads than this machine has processors.
[[nodiscard]] bool share_processors(int count, const ProfileOptions& options);

/// Samples that are enough for a time.
inline constexpr std::size_t kEnoughSamples = 5;

/// Copies of a model, one for each rank, that iterate over one batch at the same time, each with
/// ProfileOptions::threads intra-op threads.
class ConcurrentRanks {
 public:
  virtual ~ConcurrentRanks() = default;
  /// Time of an iteration (time_together) while `count` ranks run. After a warm-up of at most about half of `seconds`,
  /// all iterate until the first one has 5 samples and a 24th of options.rule.most_seconds is over, or until `seconds`
  /// is up; the first one gives at least one sample. Ranks that ran before are warm after one iteration. `seconds` is
  /// approximate: running iterations finish. Throws DeviceError if a rank fails.
  [[nodiscard]] virtual Seconds time(int count, double seconds) = 0;
  /// Processor time of the ranks that are other processes, since they started.
  [[nodiscard]] virtual Seconds other_processes_time() const = 0;
};

/// Ranks that are threads of this process. They share its memory allocator, which ranks of a run do not: with more
/// ranks than processors, one that was interrupted in the allocator stops the others. All arguments must outlive it.
[[nodiscard]] std::unique_ptr<ConcurrentRanks> ranks_as_threads(const model::Model& model,
                                                                const std::vector<at::Tensor>& batch,
                                                                const ProfileOptions& options);

/// One round in which 1, 2, ... ranks ran in turn.
struct RoundOfRanks {
  std::vector<Seconds> times;  ///< of an iteration, by number of ranks; later rounds may have fewer than the first
  bool is_disturbed = false;   ///< by other programs
};

/// How many times as long an iteration takes while 1, 2, ... ranks run: the median over rounds of the ratio to one rank
/// in the same round, so that a machine whose speed drifts from round to round does not change it; at least that of one
/// rank fewer. Disturbed rounds count only if all are. Empty without rounds.
[[nodiscard]] std::vector<double> slowdown_of(const std::vector<RoundOfRanks>& rounds);

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

/// One round of measure_in_flight_slowdown: seconds of the same microbatches in both orders.
struct InFlightRound {
  double one_by_one = 0;  ///< each backward right after its forward
  double in_flight = 0;   ///< all forwards first
};

/// The median over the rounds of in_flight / one_by_one, at least 1. Precondition: there are rounds.
[[nodiscard]] double in_flight_factor_of(const std::vector<InFlightRound>& rounds);

/// Bytes of memory that this machine can give to programs without swapping (MemAvailable); absent if it does not say.
[[nodiscard]] std::optional<Bytes> available_memory();

/// How much longer forwards and backwards of `subject`, on a CPU, take with four microbatches in flight: up to five
/// rounds, or fifteen of a model with short ones, as many as fit in `seconds` if an iteration takes `iteration`. Absent
/// if fewer than two fit, or if the activations, `saved` bytes of a microbatch, would take more than half of the
/// available memory.
[[nodiscard]] std::optional<InFlightSlowdown> measure_in_flight_slowdown(Subject& subject,
                                                                         const std::vector<at::Tensor>& batch,
                                                                         Bytes saved, Seconds iteration,
                                                                         double seconds);

}  // namespace stagecraft::profiler
