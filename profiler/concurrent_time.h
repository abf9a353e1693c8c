#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "costmodel/units.h"
#include "executor/model/model.h"
#include "profiler/profile_options.h"

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

}  // namespace stagecraft::profiler
