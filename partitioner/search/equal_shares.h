#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/costs/lattice.h"
#include "partitioner/costs/pipeline_costs.h"

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
/// bottleneck problem, solved exactly by dynamic programming from the last stage backwards: over cuts of one order of
/// the layers, and of a small graph over all sets of layers.
///
/// A stage s of t_s seconds a microbatch, of which a replica computes n, bounds the step by the way to it and back and
/// n t_s: the largest of these bounds is minimised. It is at most the step, which is at most the sum of the whole way
/// and (n - 1) max t_s (costs of all-reduce and waits for messages apart). So it is minimised under several limits of
/// max t_s too, from the least possible on; and with the least limit, the most even stages and the fullest early ones
/// are found as well, for schedules whose steps the bound describes less well.
class EqualShares {
 public:
  /// `costs` must outlive it.
  explicit EqualShares(const PipelineCosts& costs);

  /// What a stage may hold, as PipelineCosts::least_peak counts it; the stages of a device with chunks about so much
  /// together.
  struct MemoryRule {
    std::optional<Bytes> limit;
    bool with_messages = false;  ///< all count, though they are not in memory all the time; without them it is a bound
    std::vector<Bytes> besides{};  ///< by stage: what else it holds; empty: nothing
  };

  /// The splits of a shape whose stages keep within memory, each once. Empty if there is none.
  [[nodiscard]] std::vector<Split> splits(const EqualShape& shape, const MemoryRule& memory) const;

  /// About the shortest step of the shape's splits along the order of layers, with devices in order or with the stages
  /// of a replica side by side; absent if there is none. Takes about a millisecond.
  [[nodiscard]] std::optional<Seconds> estimate(const EqualShape& shape, const MemoryRule& memory) const;
  /// Whether there is such a split.
  [[nodiscard]] bool is_possible(const EqualShape& shape, const MemoryRule& memory) const;
  /// A lower bound of what the busiest device computes for a microbatch, whatever the shares of its stages, if so many
  /// devices have `chunks` stages each, without replicas, within the limit; absent if none can fit. 0 if the graph has
  /// so many sets of layers that not all are considered, or if it was stopped.
  [[nodiscard]] std::optional<Seconds> least_busiest(int devices, int chunks, Bytes limit,
                                                     const std::function<bool()>& stop) const;

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
    Bytes waiting;  ///< see NodeCosts
    Bytes workspace;
    Bytes messages;  ///< while they are sent and received
  };
  /// What a shape's stage holds and computes.
  struct Load {
    std::int64_t held = 1;     ///< microbatches at once
    std::int64_t waiting = 0;  ///< of them, for the second part of their backward
    int replicas = 1;
    double share = 1;  ///< microbatches of a replica
    std::optional<Bytes> limit;
    bool with_messages = false;
    Bytes besides;
  };

  /// What a split is to be: of the smallest bound; of the smallest sum of squared stage times; with most of the work in
  /// early stages, which waits the least for the last ones; with stages that each take about an equal share of what the
  /// stages before leave.
  enum class Aim { Short, Even, Early, Shared };
  /// Where stages may begin.
  struct Cuts {
    std::vector<std::vector<int>> groups;        ///< nodes that stay together, by node of the lattice
    std::optional<Lattice> lattice;              ///< of the reversed graph of groups: a set is what is left
    bool is_line = false;                        ///< groups are in one order
    std::vector<std::vector<Segment>> segments;  ///< by set; of a line the shorter ones first
    std::vector<Seconds> left;                   ///< by set: a microbatch's computation
  };

  [[nodiscard]] std::vector<int> line_of_nodes() const;
  [[nodiscard]] Cuts cuts_of_line(std::size_t most) const;
  [[nodiscard]] std::vector<std::vector<int>> groups_of_line(std::size_t most) const;
  void find_segments(Cuts& cuts) const;
  [[nodiscard]] std::vector<Load> loads(const EqualShape& shape, const MemoryRule& memory) const;
  [[nodiscard]] bool fits(const Segment& segment, const Load& load) const;
  [[nodiscard]] bool is_within(const Cuts& cuts, std::uint32_t set, std::size_t stages, std::size_t stage,
                               Seconds slowest) const;
  [[nodiscard]] Seconds estimate(const Split& split) const;
  [[nodiscard]] bool can_be(const std::vector<Load>& loads, Seconds slowest) const;
  [[nodiscard]] std::optional<Seconds> least_slowest(const std::vector<Load>& loads) const;
  [[nodiscard]] std::optional<Seconds> least_slowest(const Cuts& cuts, const std::vector<Load>& loads,
                                                     Seconds most) const;
  [[nodiscard]] std::optional<Split> shortest(const Cuts& cuts, const EqualShape& shape, const std::vector<Load>& loads,
                                              Seconds slowest, Aim aim) const;
  void add_splits(const Cuts& cuts, const EqualShape& shape, const std::vector<Load>& loads, Seconds slowest,
                  std::vector<Split>& out) const;

  const PipelineCosts& costs_;
  Cuts line_;
  std::optional<Cuts> coarse_;  ///< fewer cuts of the line, where it has many
  std::optional<Cuts> sets_;    ///< all sets, where the graph has few and is not a chain
  bool is_chain_ = false;       ///< the line's cuts are all sets
  Seconds all_;                 ///< a microbatch's computation
  Seconds update_;              ///< of all layers
  Bytes untied_;                ///< likewise
};

}  // namespace stagecraft::partitioner
