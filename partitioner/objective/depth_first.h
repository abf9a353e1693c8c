#pragma once

#include <vector>

#include "partitioner/exact/lattice.h"

namespace stagecraft::partitioner {

/// The nodes of an acyclic graph in a topological order that follows one branch as far as it goes.
[[nodiscard]] std::vector<int> depth_first(const Dag& dag);

/// The graph of a list: each node before the next.
[[nodiscard]] Dag list_of(const std::vector<int>& order);

/// Two orders of all nodes: depth first from the first nodes, and from the last ones.
[[nodiscard]] std::vector<std::vector<int>> depth_first_orders(const Dag& dag);

/// The lists in these orders.
[[nodiscard]] std::vector<Dag> depth_first_lists(const Dag& dag);

}  // namespace stagecraft::partitioner
