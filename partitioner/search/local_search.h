#pragma once

#include <functional>
#include <optional>
#include <random>

#include "costmodel/units.h"
#include "partitioner/costs/pipeline_costs.h"

namespace stagecraft::partitioner {

/// The value of a split, which is to be minimised, if it is below `upper_bound`; absent if it is not or cannot be
/// computed.
using SplitValue = std::function<std::optional<Seconds>(const Split& split, Seconds upper_bound)>;

/// Which moves are allowed.
struct Movable {
  bool stages = true;          ///< stages may be joined and divided
  bool replicas = true;        ///< the numbers of replicas may change
  int devices = 0;             ///< no more than these are used
  std::optional<Bytes> limit;  ///< no stage grows beyond this memory according to its lower bound
  bool is_step = true;         ///< values are step times, never shorter than the computation of a single device
};

/// `split` after moves that each lower its `value`: move a node to the stage before or after its own; add, remove or
/// move a replica; merge two adjacent stages; split one. Ends when no move helps, or `stop` says so. Equal calls give
/// equal results if `stop` does not interfere.
[[nodiscard]] Split improved(const PipelineCosts& costs, Split split, const Movable& movable, const SplitValue& value,
                             const std::function<bool()>& stop);

/// `split` after some random moves of nodes and replicas.
[[nodiscard]] Split shaken(const PipelineCosts& costs, Split split, const Movable& movable, std::mt19937& random);

/// A random split: some stages in the order of the nodes, whose computation is about in proportion to their replicas.
[[nodiscard]] Split random_split(const PipelineCosts& costs, const Movable& movable, std::mt19937& random);

/// `split` after one to three random changes that `movable` allows, larger ones than those of shaken: several nodes
/// from a stage to the next one or back, in their order; add or move a replica; merge two adjacent stages; split one.
/// May be `split` itself. Of several stages per device only nodes move.
[[nodiscard]] Split rearranged(const PipelineCosts& costs, Split split, const Movable& movable, std::mt19937& random);

/// PipelineCosts::lower_bound as the value.
[[nodiscard]] SplitValue bound_of_split(const PipelineCosts& costs);

}  // namespace stagecraft::partitioner
