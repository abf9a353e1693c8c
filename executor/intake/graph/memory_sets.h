#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace stagecraft::intake {

/// Values that may share memory, as disjoint sets.
class MemorySets {
 public:
  /// `values` values, each in a separate set.
  explicit MemorySets(std::size_t values);
  /// Joins the sets of each pair (given, read): a node's result and a value that it reads and of which the result may
  /// be a view.
  void join(std::span<const std::pair<int, int>> aliases);
  /// A number for the set of `value`.
  [[nodiscard]] int of(int value);

 private:
  std::vector<int> parent_;
};

/// What a node does with the values of its graph, as in GraphNode and NodeFacts.
struct NodeEffects {
  std::vector<int> reads;
  std::vector<int> gives;
  std::vector<int> writes;
  std::vector<std::pair<int, int>> aliases;
  std::vector<int> only_writes = {};  ///< of `reads`: no other effect of the node depends on them
};

/// By value, of `values` in all: whether `roots` may depend on it, in this run of `nodes` or, through persistent
/// memory, in a later one. Values that may share memory count as one.
[[nodiscard]] std::vector<bool> observed_values(std::span<const NodeEffects> nodes, const std::vector<int>& roots,
                                                std::size_t values);

/// Of the values that may share memory with `value`, the one that no node computes; `value` if there is none.
[[nodiscard]] int first_of_memory(std::span<const NodeEffects> nodes, int value, std::size_t values);

}  // namespace stagecraft::intake
