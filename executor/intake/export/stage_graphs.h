#pragma once

#include <vector>

#include "executor/intake/graph/layers/layer_groups.h"
#include "executor/intake/graph/operator_graph.h"

namespace stagecraft::intake {

/// A number that a stage needs and that the graph computes from a tensor which the stage does not have: it follows from
/// the size of value `tensor` in `axis`.
struct SizeSource {
  int number = -1;  ///< a value
  int tensor = -1;  ///< among StageGraph::received and inputs
  int axis = 0;
  friend bool operator==(const SizeSource&, const SizeSource&) = default;
};

/// The part of a graph that one stage computes. All but `nodes` are indices into OperatorGraph::values, ascending.
struct StageGraph {
  std::vector<int> nodes;         ///< ascending; shared ones are in every stage that needs them
  std::vector<int> received;      ///< that earlier stages compute
  std::vector<int> inputs;        ///< inputs of the model
  std::vector<int> tensors;       ///< parameters, buffers and constants
  std::vector<int> outputs;       ///< that later stages receive; in the stage that computes it, the loss last
  std::vector<int> copied;        ///< of received and inputs: values that nodes write in place; they are copied
  std::vector<SizeSource> sizes;  ///< by number
};

/// The stages of `graph` whose loss is `loss`; stage s computes the groups of `grouping` in `groups_of_stages[s]`; each
/// group is in one stage. Parameters and buffers that nothing reads are in the first stage with a parameter tied to
/// them, else in the last. A stage that only needs the batch size takes an input of the model for it. Throws
/// std::invalid_argument, naming the value and both stages, if a stage reads what a later one computes.
[[nodiscard]] std::vector<StageGraph> stage_graphs(const OperatorGraph& graph, const Grouping& grouping, int loss,
                                                   const std::vector<std::vector<int>>& groups_of_stages);

}  // namespace stagecraft::intake
