#pragma once

#include <string>

#include "executor/intake/graph/operator_graph.h"

namespace stagecraft::intake {

/// How nodes become layers. Auto is Operator for a model whose nodes are all in its outermost module.
struct Granularity {
  enum class Kind { Auto, Leaf, Depth, Operator };
  Kind kind = Kind::Auto;
  int depth = 0;  ///< of Depth: modules below the whole model
};

/// Reads "auto", "leaf", "depth=N" or "op". Throws std::invalid_argument listing these.
[[nodiscard]] Granularity parse_granularity(const std::string& text);
/// Whether `text` is one of these words, whatever follows "depth=".
[[nodiscard]] bool names_granularity(const std::string& text);

/// The layer of a node, determined only by its modules.
struct LayerLabel {
  std::string name;  ///< of the layer: the path of its module and the number of its call
  std::string path;
  std::string kind;
  friend bool operator==(const LayerLabel& a, const LayerLabel& b) { return a.name == b.name; }
};

/// Auto: the node's outermost module whose path ends in a number and that is not a Sequential, else its innermost one;
/// Leaf: its innermost module; Depth: the one this many levels below the whole model; Operator: the node itself.
[[nodiscard]] LayerLabel label_of(const GraphNode& node, const Granularity& granularity);

}  // namespace stagecraft::intake
