#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/units.h"
#include "partitioner/bounds/path_cuts.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/costs/round_trips.h"

namespace stagecraft::partitioner {

/// What a chain of stages along the computation_path takes at least, stage by stage.
///
/// Stage s of t_s = f_s + b_s seconds has r_s replicas, of which replica 0 runs n = ceil(m / r_s) microbatches. Its
/// step is at least
///   before_s + max(n t_s, queue_s + trips_of(trip_s, f_s, b_s, n, W_s)) + max(reduce_s, after_s)
/// and late_s + max(n t_s, trips_of(trip_s, f_s, b_s, n, W_s)), where
///   - before_s and after_s are the whole forwards and backwards of the stages before it with their messages, and the
///     reduce of those stages after their backward;
///   - trip_s is the way of a microbatch from the stage to the end and back, and W_s the number of microbatches that a
///     replica may hold (1f1b; else n);
///   - queue_s: of the first microbatches, one for each of w replicas, the last is number k = floor((w - 1) / r_u) on
///     its replica of a later stage u, from 0. Its backward there comes after the first one, which ends a trip after
///     its forward, and after k t_u more;
///   - late_s: on its replica of an earlier stage v the last of them has k forwards before it, and the first of the
///     last w microbatches has k backwards after it, so that before_s or after_s is k f_v or k b_v longer.
/// The replicas with the last of the first w and the first of the last w microbatches run n of them too, if w is the
/// remainder of m by r_s, or r_s if there is none.
class PathStages {
 public:
  /// Longer than any step, and more devices than there are.
  static constexpr Seconds kNever{1e100};
  static constexpr int kNone = std::numeric_limits<int>::max() / 4;

  using Waves = std::array<Seconds, 16>;
  /// What comes before a cut.
  struct Prefix {
    Seconds before, around;
    /// By place in kWaves, of the last of the first so many microbatches: when it can arrive, and that plus what
    /// follows its backward at least; or the same of the first of the last so many, which others follow back.
    Waves arrival, late;
    friend bool operator==(const Prefix&, const Prefix&) = default;

    [[nodiscard]] static Prefix none();
    [[nodiscard]] bool exists() const { return before < kNever; }
    /// The best of both, each quantity by itself.
    void merge(const Prefix& other, std::size_t waves);
  };
  /// What comes after a cut: its devices, its trip and the microbatches in flight at its first stage. The best of each,
  /// of several ways.
  struct Suffix {
    int devices = 0;
    Seconds trip;
    std::int64_t flight = 0;
    Waves queue = {};  ///< by place in kWaves: see PathStages

    [[nodiscard]] static Suffix none();
    [[nodiscard]] bool exists() const { return devices < kNone; }
    void merge(const Suffix& other, std::size_t waves);
  };
  /// `wave` is the least number of microbatches of the first (and last) round that run on replicas with the range's
  /// share.
  struct Replicas : ReplicaRange {
    std::int64_t wave = 0;  ///< at least
    int queue = -1;         ///< the place in kWaves of the largest number up to it; -1: none
  };
  /// A stage between two cuts, with lower bounds of its costs.
  struct StageBound {
    PathSums sums;
    bool on_path = false;
    Seconds trip;  ///< through it, and the message to the next one and back
    Seconds port;  ///< see TripBound
    PathHop hop;   ///< to the next one
  };

  /// All arguments must outlive it.
  PathStages(const PipelineCosts& costs, const PathCuts& cuts, std::optional<Bytes> limit);

  /// The step that is asked about, and the devices at most.
  void ask(Seconds time, int devices);
  [[nodiscard]] Seconds time() const { return time_; }
  [[nodiscard]] int devices() const { return devices_; }
  [[nodiscard]] std::size_t waves() const { return waves_; }
  [[nodiscard]] const std::vector<Replicas>& replicas() const { return replicas_; }

  [[nodiscard]] StageBound stage(const PathCut& a, const PathCut& b) const;
  /// Whether one microbatch of the stage fits in memory.
  [[nodiscard]] bool fits(const StageBound& stage) const {
    return !limit_ || costs_.least_peak(stage.sums.bytes, 1, 1) <= *limit_;
  }
  /// Whether the stage's replicas have memory for the microbatches that `later` devices behind them make them hold.
  [[nodiscard]] bool fits(const StageBound& stage, const Replicas& replicas, int later) const;
  /// Whether the stage keeps within the time if each of its replicas may hold `in_flight` microbatches.
  [[nodiscard]] bool keeps(const StageBound& stage, const Replicas& replicas, std::int64_t in_flight,
                           const Prefix& prefix, Seconds trip, Seconds queue) const;
  /// Whether it does before what comes later.
  [[nodiscard]] bool keeps(const StageBound& stage, const Replicas& replicas, const Prefix& prefix,
                           const Suffix& later) const;
  /// The first of replicas() whose computation alone leaves the stage within the time.
  [[nodiscard]] std::size_t first_replicas(const StageBound& stage, Seconds before) const;
  /// What comes before the cut where the stage ends.
  [[nodiscard]] Prefix after(const StageBound& stage, const Replicas& replicas, const Prefix& prefix) const;
  /// What comes after the cut where the stage begins.
  [[nodiscard]] Suffix before(const StageBound& stage, const Replicas& replicas, const Suffix& later) const;
  /// The way along the path after a cut and back.
  [[nodiscard]] Seconds way_after(const PathCut& cut) const;

 private:
  void find_replicas();
  [[nodiscard]] Seconds reduce(const PathSums& sums, const Replicas& replicas) const;
  [[nodiscard]] std::int64_t held_microbatches(const Replicas& replicas, const Suffix& later) const;
  [[nodiscard]] Seconds queue_of(const StageBound& stage, const Replicas& replicas, std::int64_t in_flight,
                                 std::int64_t wave) const;

  const PipelineCosts& costs_;
  const PathCuts& cuts_;
  std::optional<Bytes> limit_;
  bool alternates_ = false;  ///< see ScheduleEntry: what is in flight is known
  bool returns_ = false;     ///< a backward follows, whose gradients the stages before wait for
  std::vector<Replicas> replicas_;
  // Of the latest question.
  Seconds time_;
  int devices_ = 0;
  std::size_t waves_ = 0;  ///< places of kWaves that are used
};

}  // namespace stagecraft::partitioner
