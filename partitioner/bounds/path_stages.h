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

/// Lower bounds of the stages of a chain along the computation_path.
///
/// Let m be the microbatches of a step. Stage s takes t_s = f_s + b_s seconds for one of them, forward and backward,
/// and has r_s replicas; replica 0 of s runs n = ceil(m / r_s) microbatches. The step is at least
///   before_s + max(n t_s, queue_s + trips_of(trip_s, f_s, b_s, n, W_s)) + max(reduce_s, after_s) and at least
///   late_s + max(n t_s, trips_of(trip_s, f_s, b_s, n, W_s)), where
///   - before_s is the sum of the forwards of all stages v < s and of the messages between them; after_s is the sum of
///     their backwards and messages, or the reduce of some v < s after the backward of v, if that is longer;
///   - trip_s is the way of a microbatch from s to the end of the path and back;
///   - W_s is the number of microbatches that a replica of s may hold: n, unless the schedule alternates;
///   - queue_s is a wait at a stage u > s. Let x be the last of the first w microbatches. On its replica of u, x has
///     number k = floor((w - 1) / r_u), counted from 0. The backward of x on u follows the backward of microbatch 0
///     there, which ends a trip after its forward, and k t_u more;
///   - late_s adds waits at a stage v < s: k forwards on v precede that of x, and k backwards on v follow that of y,
///   the
///     first of the last w microbatches. So before_s is k f_v longer for x, and after_s is k b_v longer for y.
/// If w = m mod r_s, or w = r_s where r_s divides m, then the replicas of s that run x and y run n microbatches too.
class PathStages {
 public:
  /// Longer than any step, and more devices than there are.
  static constexpr Seconds kNever{1e100};
  static constexpr int kNone = std::numeric_limits<int>::max() / 4;

  using Waves = std::array<Seconds, 16>;
  /// The stages before a cut: before_s, and before_s + after_s.
  struct Prefix {
    Seconds before, around;
    /// By place in kWaves, for each w: `arrival` is when x, the last of the first w microbatches, can arrive. `late` is
    /// `arrival` plus what follows the backward of x at least, or the same for y, the first of the last w microbatches,
    /// whichever is more.
    Waves arrival, late;
    friend bool operator==(const Prefix&, const Prefix&) = default;

    [[nodiscard]] static Prefix none();
    [[nodiscard]] bool exists() const { return before < kNever; }
    /// The smaller of both, each quantity by itself.
    void merge(const Prefix& other, std::size_t waves);
  };
  /// The stages after a cut: their devices, their trip, and the microbatches in flight at the first of them. If several
  /// ways are merged, each quantity is the best of all ways.
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

  /// Sets the step `time` of the next questions, and the most devices.
  void ask(Seconds time, int devices);
  [[nodiscard]] Seconds time() const { return time_; }
  [[nodiscard]] int devices() const { return devices_; }
  [[nodiscard]] std::size_t waves() const { return waves_; }
  [[nodiscard]] const std::vector<Replicas>& replicas() const { return replicas_; }

  [[nodiscard]] StageBound stage(const PathCut& a, const PathCut& b) const;
  /// Whether the stage fits in memory with one microbatch.
  [[nodiscard]] bool fits(const StageBound& stage) const {
    return !limit_ || costs_.least_peak(stage.sums.bytes, 1, 1) <= *limit_;
  }
  /// Whether the stage's replicas have memory for the microbatches that they hold with `later` devices after them.
  [[nodiscard]] bool fits(const StageBound& stage, const Replicas& replicas, int later) const;
  /// Whether the stage keeps within time() if each replica may hold `in_flight` microbatches.
  [[nodiscard]] bool keeps(const StageBound& stage, const Replicas& replicas, std::int64_t in_flight,
                           const Prefix& prefix, Seconds trip, Seconds queue) const;
  /// Whether the stage keeps within time() before the stages `later`.
  [[nodiscard]] bool keeps(const StageBound& stage, const Replicas& replicas, const Prefix& prefix,
                           const Suffix& later) const;
  /// The first of replicas() whose computation alone leaves the stage within the time.
  [[nodiscard]] std::size_t first_replicas(const StageBound& stage, Seconds before) const;
  /// The Prefix of the cut where the stage ends.
  [[nodiscard]] Prefix after(const StageBound& stage, const Replicas& replicas, const Prefix& prefix) const;
  /// The Suffix of the cut where the stage begins.
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
