#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/exact/lattice.h"
#include "partitioner/exact/pipeline_costs.h"

namespace stagecraft::partitioner {

/// Stages with as many replicas each.
struct EqualShape {
  int stages = 1;    ///< of all devices together
  int replicas = 1;  ///< of each stage
  int chunks = 1;    ///< Plan::chunks
  friend auto operator<=>(const EqualShape&, const EqualShape&) = default;
};

/// Splits into stages of equal shares: what an engineer tries first. The memory of such a stage follows from its
/// distance to the last one, which says how many microbatches it holds. So the best split under a memory limit is a
/// bottleneck problem, solved exactly by dynamic programming from the last stage backwards: over all sets of layers of
/// a small graph, else over cuts of one order of its layers.
///
/// A stage s of t_s seconds a microbatch, of which a replica computes n, bounds the step by the way to it and back and
/// n t_s: the largest of these bounds is minimised. It is no more than the step, which is no more than the whole way
/// and (n - 1) max t_s (costs of all-reduce and waits for messages apart). So it is minimised under several limits of
/// max t_s too, from the least possible on.
class EqualShares {
 public:
  /// `costs` must outlive it.
  explicit EqualShares(const PipelineCosts& costs);

  /// The splits of a shape whose stages hold no more than `limit` by peak_bytes, of a device with chunks about so much
  /// together; each once. Empty if there is none.
  [[nodiscard]] std::vector<Split> splits(const EqualShape& shape, std::optional<Bytes> limit);

  /// About the shortest step of the shape's splits, without its messages; absent if there is none.
  [[nodiscard]] std::optional<Seconds> estimate(const EqualShape& shape, std::optional<Bytes> limit);

 private:
  /// A stage: the layers of a set of what is left that are not in the set `below`.
  struct Segment {
    std::uint32_t below = 0;
    Seconds time;     ///< forward and backward of a microbatch
    Seconds message;  ///< to the stage and back
    Seconds update;
    Seconds backward;
    Bytes untied;
    StageBytes bytes;
    Bytes workspace;
  };
  /// What a shape's stage holds and computes.
  struct Load {
    std::int64_t held = 1;  ///< microbatches at once
    int replicas = 1;
    double share = 1;  ///< microbatches of a replica
    std::optional<Bytes> limit;
  };

  void group_nodes();
  void find_segments();
  [[nodiscard]] std::vector<Load> loads(const EqualShape& shape, std::optional<Bytes> limit) const;
  [[nodiscard]] bool fits(const Segment& segment, const Load& load) const;
  [[nodiscard]] std::optional<Seconds> least_slowest(const std::vector<Load>& loads) const;
  [[nodiscard]] std::optional<Split> shortest(const EqualShape& shape, const std::vector<Load>& loads,
                                              Seconds slowest) const;

  const PipelineCosts& costs_;
  std::vector<std::vector<int>> groups_;        ///< nodes that stay together, by node of the lattice
  std::optional<Lattice> lattice_;              ///< of the reversed graph of groups: a set is what is left
  std::vector<std::vector<Segment>> segments_;  ///< by set
  Seconds all_;                                 ///< a microbatch's computation
};

}  // namespace stagecraft::partitioner
