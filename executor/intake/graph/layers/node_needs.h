#pragma once

#include <set>
#include <vector>

#include "executor/intake/graph/memory_sets.h"
#include "executor/intake/graph/operator_graph.h"

namespace stagecraft::intake {

/// The memory of a graph's values, and what owns it.
class GraphMemory {
 public:
  explicit GraphMemory(const OperatorGraph& graph);

  /// A number for the memory of `value`.
  [[nodiscard]] int of(int value) { return sets_.of(value); }
  /// Whether memory `memory` is a buffer's or a constant's.
  [[nodiscard]] bool is_state(int memory) const { return state_.contains(memory); }
  /// Whether the memory of `value` may be that of a parameter; of an input of the model.
  [[nodiscard]] bool is_trained(int value) { return trained_.contains(of(value)); }
  [[nodiscard]] bool reaches_input(int value) { return inputs_.contains(of(value)); }
  [[nodiscard]] bool writes_state(const GraphNode& node);

 private:
  MemorySets sets_;
  std::set<int> state_;
  std::set<int> trained_;
  std::set<int> inputs_;
};

/// By node: whether `root` or a buffer needs it, or it draws random numbers, which advances the generator for later
/// nodes. Throws std::invalid_argument with place_of the node if it writes a parameter.
[[nodiscard]] std::vector<bool> needed_nodes(const OperatorGraph& graph, int root, GraphMemory& memory);

/// By node: whether it is among `needed` and follows from the model's inputs and constants, so that its results are the
/// same wherever it is computed.
[[nodiscard]] std::vector<bool> repeatable_nodes(const OperatorGraph& graph, const std::vector<bool>& needed,
                                                 GraphMemory& memory);

}  // namespace stagecraft::intake
