#pragma once

#include <cstdint>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/units.h"
#include "partitioner/costs/heaviest_path.h"
#include "partitioner/costs/pipeline_costs.h"

namespace stagecraft::partitioner {

/// Sums of the costs of nodes.
struct PathSums {
  Seconds forward, back, least, update;
  Bytes untied;
  StageBytes bytes;
  std::int64_t nodes = 0;
};

/// A cut between stages, known by the number of nodes of the computation_path before it; or some neighbouring cuts,
/// with `first` to `last` nodes of the path before them.
struct PathCut {
  int first = 0, last = 0;
  PathSums low, high;                    ///< least and most that is before the cut, by number
  bool several = true;                   ///< there may be stages between two of these cuts
  PathHop hop;                           ///< least message of the path over such a cut
  std::size_t parts = 0, parts_end = 0;  ///< the cuts of the next finer level that it joins
};

/// The cuts of a graph along its computation_path: each node of the path, with what precedes it, is surely before the
/// cuts that follow it, and what follows the path's next node surely after. In levels, of which the coarsest joins
/// neighbours until about some number of cuts is left.
class PathCuts {
 public:
  /// `costs` must outlive it, and have a node.
  PathCuts(const PipelineCosts& costs, int most_cuts);

  /// The coarsest first. In each, the first cut is before all nodes and the last one after them.
  [[nodiscard]] const std::vector<std::vector<PathCut>>& levels() const { return levels_; }
  [[nodiscard]] const std::vector<PathCut>& coarse() const { return levels_.front(); }
  [[nodiscard]] const std::vector<PathCut>& fine() const { return levels_.back(); }
  /// Sums over all nodes of the path.
  [[nodiscard]] const PathSums& all() const { return along_.back(); }
  /// Sums over the first nodes of the path.
  [[nodiscard]] const PathSums& along(int nodes) const { return along_[to_index(nodes)]; }

  /// What a stage from `a` to a later cut `b` has at least.
  [[nodiscard]] PathSums between(const PathCut& a, const PathCut& b) const;

  /// The stage of each node if stages begin at the given fine cuts, ascending, besides the first one: nodes are as
  /// early as the path allows.
  [[nodiscard]] std::vector<int> stage_of_node(const std::vector<std::size_t>& begins) const;

 private:
  [[nodiscard]] std::vector<PathCut> every_cut(const PipelineCosts& costs, const std::vector<int>& path);

  std::vector<PathSums> along_;
  std::vector<int> place_;  ///< by node: the first place on the path that it precedes or has
  std::vector<std::vector<PathCut>> levels_;
};

}  // namespace stagecraft::partitioner
