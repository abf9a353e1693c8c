#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/costs/lattice.h"
#include "partitioner/costs/pipeline_costs.h"

namespace stagecraft::partitioner {

/// A shape of a pipeline whose stages all have the same number of replicas.
struct EqualShape {
  int stages = 1;    ///< of all devices together
  int replicas = 1;  ///< of each stage
  int chunks = 1;    ///< Plan::chunks
  friend auto operator<=>(const EqualShape&, const EqualShape&) = default;
};

/// Splits into stages of equal shares: what an engineer tries first. The distance of a stage to the last one determines
/// how many microbatches the stage holds, and so the memory that its layers need. The best split under a memory limit
/// is therefore a bottleneck problem, which dynamic programming from the last stage backwards solves exactly: over the
/// cuts of one order of the layers, and for a small graph over all sets of layers.
///
/// Let stage s take t_s seconds for a microbatch, let each replica compute n microbatches, and let way_s be the way of
/// a microbatch to s and back. Apart from all-reduce and waits for messages,
///   B = max_s (way_s + n t_s) <= step <= way + (n - 1) max_s t_s,
/// where `way` is the whole way. The search minimises B, without a limit on max_s t_s and under several limits, from
/// the least possible one on. For schedules whose steps B describes less well, the search also finds the most even
/// stages and the fullest early stages under the least limit.
class EqualShares {
 public:
  /// `costs` must outlive it.
  explicit EqualShares(const PipelineCosts& costs);

  /// What a stage may hold, as PipelineCosts::least_peak counts; with chunks, about what the stages of a device may
  /// hold together.
  struct MemoryRule {
    std::optional<Bytes> limit;
    bool with_messages = false;    ///< count all messages, which are in memory only at times; false: a lower bound
    std::vector<Bytes> besides{};  ///< by stage: what else the stage holds; empty: nothing
  };

  /// The splits of a shape whose stages keep within memory, each once. Empty if there is none.
  [[nodiscard]] std::vector<Split> splits(const EqualShape& shape, const MemoryRule& memory) const;

  /// An estimate of the shortest step of the shape's splits along the order of layers, with devices in order or with
  /// the stages of a replica side by side; absent if no split fits. Takes about a millisecond.
  [[nodiscard]] std::optional<Seconds> estimate(const EqualShape& shape, const MemoryRule& memory) const;
  /// Whether a split of the shape fits in memory.
  [[nodiscard]] bool is_possible(const EqualShape& shape, const MemoryRule& memory) const;
  /// A lower bound of what a device of the busiest of `positions` pipeline positions computes for a microbatch, if each
  /// has `chunks` stages of any shares, on `replicas` devices, within the limit; absent if no such stages fit. 0 if the
  /// graph has so many sets of layers that not all are considered, or if `stop` ended the search.
  [[nodiscard]] std::optional<Seconds> least_busiest(int positions, int replicas, int chunks, Bytes limit,
                                                     const std::function<bool()>& stop) const;

 private:
  /// A stage: the layers that are in a set, but not in the set `below`. Sets are what is left after the stages before.
  struct Segment {
    std::uint32_t below = 0;
    Seconds time;     ///< forward and backward of a microbatch
    Seconds message;  ///< to the stage and back
    Seconds update;
    Seconds backward;
    Bytes untied;
    StageBytes bytes;
    Bytes waiting;  ///< see NodeCosts
    StageWorkspace workspace;
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

  /// What to aim for: Short, the smallest bound; Even, the smallest sum of squared stage times; Early, most of the work
  /// in early stages, which wait the least for the last ones; Late, most of the work in late stages, which for chunks
  /// are a device's last; Shared, stages that each take about an equal share of what the stages before leave.
  enum class Aim { Short, Even, Early, Late, Shared };
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
  [[nodiscard]] Bytes need_of_chunk(const Segment& segment, int held, int replicas) const;
  [[nodiscard]] bool refutes_devices(const Cuts& cuts, const std::vector<int>& held, int devices, int replicas,
                                     Bytes limit, Seconds time) const;
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
  std::optional<Cuts> coarse_;  ///< fewer cuts of the line, if the line has many
  std::optional<Cuts> sets_;    ///< all sets, where the graph has few and is not a chain
  bool is_chain_ = false;       ///< the line's cuts are all sets
  Seconds all_;                 ///< a microbatch's computation
  Seconds update_;              ///< of all layers
  Bytes untied_;                ///< of all layers
};

}  // namespace stagecraft::partitioner
