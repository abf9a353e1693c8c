#pragma once

#include <functional>
#include <optional>
#include <random>

#include "costmodel/units.h"
#include "partitioner/costs/pipeline_costs.h"

namespace stagecraft::partitioner {

/// The value of a split, which the search minimises; absent if the value is not below `upper_bound` or cannot be
/// computed.
using SplitValue = std::function<std::optional<Seconds>(const Split& split, Seconds upper_bound)>;

/// Which moves are allowed.
struct Movable {
  bool stages = true;          ///< stages may be joined and divided
  bool replicas = true;        ///< the numbers of replicas may change
  int devices = 0;             ///< the most devices that a split may use
  std::optional<Bytes> limit;  ///< no stage may grow beyond this memory, by its lower bound
  bool is_step = true;         ///< values are step times, never shorter than the computation of a single device
};

/// `split` after moves that each lower its `value`: move a node to the stage before or after its own; add, remove or
/// move a replica; merge two adjacent stages; split one. Ends when no move helps, or `stop` says so. Equal calls give
/// equal results if `stop` does not interfere.
[[nodiscard]] Split improved(const PipelineCosts& costs, Split split, const Movable& movable, const SplitValue& value,
                             const std::function<bool()>& stop);

/// `split` after some random moves of nodes and replicas.
[[nodiscard]] Split shaken(const PipelineCosts& costs, Split split, const Movable& movable, std::mt19937& random);

/// A random split: stages in the order of the nodes, each with computation about in proportion to its replicas.
[[nodiscard]] Split random_split(const PipelineCosts& costs, const Movable& movable, std::mt19937& random);

/// `split` after one to three random changes that `movable` allows, larger than the changes of shaken: move several
/// nodes, in their order, to an adjacent stage; add or move a replica; merge two adjacent stages; split one. May be
/// `split` itself. With several stages per device, only nodes move.
[[nodiscard]] Split rearranged(const PipelineCosts& costs, Split split, const Movable& movable, std::mt19937& random);

/// PipelineCosts::lower_bound as the value.
[[nodiscard]] SplitValue bound_of_split(const PipelineCosts& costs);

}  // namespace stagecraft::partitioner
