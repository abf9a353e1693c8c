#pragma once

#include <cstdint>
#include <utility>
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
  Seconds loading;  ///< see NodeCosts, of the node with the most
  std::int64_t nodes = 0;
};

/// A cut between stages, identified by the number of nodes of the computation_path before the cut; or several
/// neighbouring cuts, with `first` to `last` nodes of the path before them.
struct PathCut {
  int first = 0, last = 0;
  PathSums low, high;                    ///< the least and the most that can precede the cut
  bool several = true;                   ///< stages may lie between two of these cuts
  PathHop hop;                           ///< least message of the path over such a cut
  std::size_t parts = 0, parts_end = 0;  ///< the cuts of the next finer level that are joined here
};

/// The cuts of a graph along its computation_path v_1, v_2, ...: a cut with i nodes of the path before it has v_i and
/// all ancestors of v_i before it, and v_(i+1) and all descendants of v_(i+1) after it. All other nodes may be on
/// either side. The cuts have levels; each coarser level joins neighbours, until the coarsest has about `most_cuts`.
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

  /// The least that a stage from cut `a` to a later cut `b` contains.
  [[nodiscard]] PathSums between(const PathCut& a, const PathCut& b) const;

  /// The stage of each node if stages begin at the given fine cuts, ascending, besides the first one: nodes are as
  /// early as the path allows.
  [[nodiscard]] std::vector<int> stage_of_node(const std::vector<std::size_t>& begins) const;

 private:
  [[nodiscard]] std::vector<PathCut> every_cut(const PipelineCosts& costs, const std::vector<int>& path);

  std::vector<PathSums> along_;
  std::vector<std::pair<int, Seconds>> loading_;  ///< places on the path whose nodes load data
  std::vector<int> place_;  ///< by node v: the first place on the path whose node is v or a descendant of v
  std::vector<std::vector<PathCut>> levels_;
};

}  // namespace stagecraft::partitioner
