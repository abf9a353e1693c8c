#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/exact/computation_path.h"
#include "partitioner/exact/pipeline_costs.h"

namespace stagecraft::partitioner {

/// A lower bound of all splits with one stage per device, for graphs and clusters that are too large for TripBound. It
/// enumerates no sets: a cut is known by the number of nodes of the heaviest path before it. What precedes these nodes
/// is surely before the cut, what follows the path's next node surely after it, so that a stage between two cuts has at
/// least the difference, and at least the path's nodes between them. Neighbouring cuts are joined until few are left.
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
///
/// Dynamic programming over cuts and devices decides whether a chain of stages with sum r_s <= devices keeps within a
/// step. Every split is such a chain, with stages that have no less than what is counted; where ways to a cut are
/// joined, each quantity is the best of all of them. So what is refuted here is refuted for all splits.
class PathBound {
 public:
  /// `costs` must outlive it. Null if nothing waits (see PipelineCosts::waits) or no layer is left. About `most_cuts`
  /// cuts are distinguished.
  [[nodiscard]] static std::unique_ptr<PathBound> of(const PipelineCosts& costs, std::optional<Bytes> limit,
                                                     int most_cuts);

  /// Whether no split over at most `devices` can take at most `time`, as far as this bound can tell. Absent if it was
  /// stopped.
  [[nodiscard]] std::optional<bool> refutes(Seconds time, int devices, const std::function<bool()>& stop);

 private:
  struct Sums {
    Seconds forward, back, least, update;
    Bytes untied, kept, saved;
    std::int64_t nodes = 0;
  };
  /// Cuts with `first` to `last` nodes of the path before them.
  struct Cut {
    int first = 0, last = 0;
    Sums low, high;       ///< least and most that is before the cut, by number
    bool several = true;  ///< there may be stages between two of these cuts
    PathHop hop;          ///< least message of the path over such a cut
  };
  using Waves = std::array<Seconds, 16>;
  /// What comes before a cut, for stages on at most some number of devices: see TripBound.
  struct Prefix {
    Seconds before, around;
    /// By place in kWaves, of the last of the first so many microbatches: when it can arrive, and that plus what
    /// follows its backward at least; or the same of the first of the last so many, which others follow back.
    Waves arrival, late;
    friend bool operator==(const Prefix&, const Prefix&) = default;
  };
  /// What comes after a cut: its devices, its trip and the microbatches in flight at its first stage. The best of each,
  /// of several ways.
  struct Suffix {
    int devices = 0;
    Seconds trip;
    std::int64_t flight = 0;
    Waves queue = {};  ///< by place in kWaves: see queue_of
  };
  /// Numbers of replicas with equal shares. `wave` is the least number of microbatches of the first (and last) round
  /// that run on replicas with that share.
  struct Replicas {
    int first = 1, last = 1;
    std::int64_t share = 0;
    std::int64_t wave = 0;  ///< at least
    int queue = -1;         ///< the place in kWaves of the largest number up to it; -1: none
  };

  /// A stage between two cuts, with lower bounds of its costs.
  struct StageBound {
    Sums sums;
    bool on_path = false;
    Seconds trip;  ///< through it, and the message to the next one and back
    Seconds port;  ///< see TripBound
  };

  PathBound(const PipelineCosts& costs, std::optional<Bytes> limit, int most_cuts);
  static void add(Sums& sums, const NodeCosts& node);
  void find_cuts(const std::vector<int>& path, int most_cuts);
  void join_cuts(std::vector<Cut> cuts, int most_cuts);
  void find_replicas();
  [[nodiscard]] Sums between(const Cut& a, const Cut& b) const;
  [[nodiscard]] StageBound stage(std::size_t from, std::size_t to) const;
  [[nodiscard]] Seconds reduce(const Sums& sums, const Replicas& replicas) const;
  [[nodiscard]] bool fits(const Sums& sums, int replicas, int later) const;
  [[nodiscard]] bool keeps(const StageBound& stage, const Replicas& replicas, std::int64_t held, const Prefix& prefix,
                           Seconds trip, Seconds queue) const;
  [[nodiscard]] Seconds queue_of(const StageBound& stage, const Replicas& replicas, std::int64_t held,
                                 std::int64_t wave) const;
  [[nodiscard]] Suffix before(const StageBound& stage, const Replicas& replicas, std::int64_t held,
                              const Suffix& later) const;
  [[nodiscard]] std::size_t first_replicas(const StageBound& stage, Seconds before) const;
  [[nodiscard]] const Replicas* least_replicas(const StageBound& stage, const Prefix& prefix, Seconds trip) const;
  [[nodiscard]] Seconds way_after(std::size_t cut) const;
  [[nodiscard]] Prefix after(const StageBound& stage, std::size_t to, const Replicas& replicas,
                             const Prefix& prefix) const;
  void merge(Prefix& into, const Prefix& other) const;
  [[nodiscard]] bool should_stop(const std::function<bool()>& stop);
  bool go_forward(const std::function<bool()>& stop);
  bool find_least_after(const std::function<bool()>& stop);
  bool go_back(const std::function<bool()>& stop);
  void insert(std::size_t cut, const Suffix& suffix);
  void add_stages_without_work(std::size_t cut);
  [[nodiscard]] std::size_t place(int devices) const { return to_index(devices / step_); }
  [[nodiscard]] const Prefix& prefix(std::size_t cut, int devices) const {
    return prefixes_[cut * (place(devices_) + 1) + place(devices)];
  }

  const PipelineCosts& costs_;
  std::optional<Bytes> limit_;
  bool alternates_ = false;  ///< see ScheduleEntry: what is in flight is known
  bool returns_ = false;     ///< a backward follows, whose gradients the stages before wait for
  std::vector<Sums> along_;  ///< of the first nodes of the path, by their number
  std::vector<Cut> cuts_;    ///< the first one is before all nodes, the last one after them
  std::vector<Replicas> replicas_;

  // Of the latest question.
  std::size_t waves_ = 0;  ///< places of kWaves that are used
  Seconds time_;
  int devices_ = 0;
  int step_ = 1;                               ///< of devices, in prefixes_
  std::vector<Prefix> prefixes_;               ///< by cut and devices
  std::vector<int> least_before_;              ///< devices for the stages before a cut, by cut
  std::vector<int> least_after_;               ///< likewise after it
  std::vector<std::vector<Suffix>> suffixes_;  ///< by cut; by devices from least_after_, in steps of width_
  std::vector<int> width_;
  std::uint64_t asked_ = 0;
};

}  // namespace stagecraft::partitioner
