#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/bounds/path_cuts.h"
#include "partitioner/bounds/path_stages.h"
#include "partitioner/bounds/replica_orders.h"
#include "partitioner/costs/pipeline_costs.h"

namespace stagecraft::partitioner {

/// A lower bound of all splits with one stage per device, for graphs and clusters that are too large for TripBound.
/// Instead of sets, PathCuts distinguishes cuts by the number of nodes of the heaviest path before them. PathStages has
/// the bounds of a stage between two cuts.
///
/// Dynamic programming over cuts and devices decides whether a chain of stages with sum r_s <= devices keeps within a
/// step T. Proof that a refuted T is refuted for all splits: every split is such a chain, and each of its stages takes
/// at least the bound of PathStages. Where several ways to a cut are merged, each quantity is the best of all ways, so
/// no way is lost. ReplicaOrders tries each T that is not refuted.
class PathBound {
 public:
  /// `costs` must outlive it. Null if nothing waits (see PipelineCosts::waits) or no layer is left. About `most_cuts`
  /// cuts are distinguished.
  [[nodiscard]] static std::unique_ptr<PathBound> of(const PipelineCosts& costs, std::optional<Bytes> limit,
                                                     int most_cuts);
  PathBound(const PathBound&) = delete;
  PathBound& operator=(const PathBound&) = delete;

  /// True if the bound proves that every split over at most `devices` takes longer than `time`. Absent if `stop` ended
  /// the proof.
  [[nodiscard]] std::optional<bool> refutes(Seconds time, int devices, const std::function<bool()>& stop);

  /// The splits with the shortest estimated steps that questions so far came upon, the shortest first; `most` at most.
  [[nodiscard]] std::vector<Split> splits(std::size_t most) const { return orders_.splits(most); }

 private:
  using Prefix = PathStages::Prefix;
  using Suffix = PathStages::Suffix;
  using Replicas = PathStages::Replicas;
  using StageBound = PathStages::StageBound;

  PathBound(const PipelineCosts& costs, std::optional<Bytes> limit, int most_cuts);
  [[nodiscard]] StageBound stage(std::size_t from, std::size_t to) const {
    return stages_.stage(cuts_.coarse()[from], cuts_.coarse()[to]);
  }
  [[nodiscard]] const Replicas* least_replicas(const StageBound& stage, const Prefix& prefix, Seconds trip) const;
  [[nodiscard]] bool should_stop(const std::function<bool()>& stop);
  bool go_forward(const std::function<bool()>& stop);
  bool find_least_after(const std::function<bool()>& stop);
  bool go_back(const std::function<bool()>& stop);
  void insert(std::size_t cut, const Suffix& suffix);
  void add_stages_without_work(std::size_t cut);
  void find_best_after();
  [[nodiscard]] const Suffix* best_after(std::size_t cut, int devices) const;
  [[nodiscard]] std::size_t place(int devices) const { return to_index(devices / step_); }
  [[nodiscard]] const Prefix& prefix(std::size_t cut, int devices) const {
    return prefixes_[cut * (place(stages_.devices()) + 1) + place(devices)];
  }

  PathCuts cuts_;
  PathStages stages_;
  ReplicaOrders orders_;

  // Of the latest question, by cut of the coarsest level.
  int step_ = 1;                               ///< of devices, in prefixes_
  std::vector<Prefix> prefixes_;               ///< by cut and devices
  std::vector<int> least_before_;              ///< devices for the stages before a cut, by cut
  std::vector<int> least_after_;               ///< devices for the stages after a cut, by cut
  std::vector<std::vector<Suffix>> suffixes_;  ///< by cut; by devices from least_after_, in steps of width_
  std::vector<int> width_;
  std::uint64_t asked_ = 0;
};

}  // namespace stagecraft::partitioner
