#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "costmodel/units.h"
#include "executor/model/model.h"
#include "profiler/profile.h"

namespace stagecraft::profiler {

/// Time of an iteration, from the seconds of all iterations of each rank. The median; if ranks share processors, the
/// number of ranks divided by the sum of their rates: a rank that has a processor to itself gives more and shorter
/// iterations than those that share one, and only rates add up to what the processors do.
[[nodiscard]] Seconds time_together(const std::vector<std::vector<double>>& samples, bool share_processors);

/// Copies of `model`, one for each rank, that iterate over `batch` at the same time, each in a thread with
/// `options.threads` intra-op threads. All arguments must outlive it.
class ConcurrentRanks {
 public:
  ConcurrentRanks(const model::Model& model, const std::vector<at::Tensor>& batch, const ProfileOptions& options);
  ~ConcurrentRanks();

  /// Time of an iteration (time_together) while `count` ranks run. After a warm-up of at most about half of `seconds`,
  /// all iterate until the first one has 5 samples and a 24th of options.rule.most_seconds is over, or until `seconds`
  /// is up; the first one gives at least one sample. Ranks that ran before are warm after one iteration. `seconds` is
  /// approximate: running iterations finish.
  [[nodiscard]] Seconds time(int count, double seconds);

 private:
  struct Rank;
  const model::Model& model_;
  const std::vector<at::Tensor>& batch_;
  const ProfileOptions& options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

/// How many times as long an iteration takes while 1, 2, ... ranks run, from rounds: `rounds[r][k - 1]` is the time
/// with k ranks in round r; later rounds may have fewer entries than the first. The median over rounds of the ratio to
/// one rank in the same round, so that a machine whose speed drifts from round to round does not change it; at least
/// that of one rank fewer. Empty without rounds.
[[nodiscard]] std::vector<double> slowdown_of(const std::vector<std::vector<Seconds>>& rounds);

}  // namespace stagecraft::profiler
