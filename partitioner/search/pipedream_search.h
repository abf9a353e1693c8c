#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <variant>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/units.h"
#include "partitioner/search/downsets.h"

namespace stagecraft::partitioner {

/// The switches of PipeDream's optimizer.
struct PipedreamOptions {
  bool straight_pipeline = false;  ///< no replicas; as many stages as devices
  bool use_memory_constraint = false;
  Bytes memory_limit{16'000'000'000};  ///< with use_memory_constraint
  bool use_fewer_machines = false;     ///< devices may stay idle
  /// Transfers are divided by it: 1 is uncompressed. Absent: transfers are free, as in PipeDream.
  std::optional<double> activation_compression_ratio;
  /// About how many pairs of cuts may be compared; absent: as many as it takes. Beyond, the answer is the best one
  /// among a part of all cuts, as if there were no others.
  std::optional<std::int64_t> most_pairs = {};
};

/// One level of PipeDream's machine: `machines` groups of the level below, connected by links of `bandwidth`.
struct SearchLevel {
  int machines = 1;
  BytesPerSecond bandwidth{1e9};
};

/// A stage of the answer: the members of set `to` that are not in set `from`, one replica on each of `devices`. Devices
/// are numbered as in a Topology. A group that an outer level replicates C times keeps its microbatches: replica j is
/// in copy j mod C.
struct SearchStage {
  int from = 0;
  int to = 0;
  std::vector<int> devices;
  friend bool operator==(const SearchStage&, const SearchStage&) = default;
};

/// The least time of the slowest stage, and stages that have it.
struct SearchAnswer {
  Seconds time{std::numeric_limits<double>::infinity()};
  std::vector<SearchStage> stages;  ///< empty if no partition meets the constraints; `time` is then infinite
};

/// PipeDream's optimum over `sets` on `levels`, innermost first, as its published optimizer defines it. With r of n
/// machines at a level with bandwidth B, C compute (at outer levels the inner answer of a whole group), P parameter
/// bytes:
///   one stage       (C + 4 (r-1) P / (B r g)) / r,  g the machine count of the previous level, 1 at the innermost
///   a later stage   (C + 4 (r-1) P / (B r)) / r, and at least 2 boundary / (B r c) before it and, except for the last
///                   set, after it; c the activation_compression_ratio, without which transfers are free
/// Straight pipelines have r = 1. Memory: ceil((n - used) / r) (activation + parameter) of a stage within the limit,
/// `used` being the machines of this stage and those before it. Ranges begin and end at sets that contain one another.
/// With use_fewer_machines a range that can be split may leave machines idle. Among equal answers: the fewest
/// machines, then a single stage, the earliest last cut, the fewest replicas. Infeasible if there are too many sets for
/// the tables of inner levels.
[[nodiscard]] std::variant<SearchAnswer, Infeasible> pipedream_search(const Downsets& sets,
                                                                      const std::vector<SearchLevel>& levels,
                                                                      const PipedreamOptions& options);

/// The time of the slowest of `stages` (in order, covering all of the last set) on one level, by the formulas of
/// pipedream_search, with one replica on each of a stage's devices; absent if pipedream_search does not consider this
/// partition.
[[nodiscard]] std::optional<Seconds> pipedream_time(const Downsets& sets, const SearchLevel& level,
                                                    const std::vector<SearchStage>& stages,
                                                    const PipedreamOptions& options);

}  // namespace stagecraft::partitioner
