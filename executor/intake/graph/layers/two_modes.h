#pragma once

#include "executor/intake/graph/layers/granularity.h"
#include "executor/intake/graph/operator_graph.h"
#include "executor/model/model.h"

namespace stagecraft::intake {

/// The model whose layers compute what `training` does or, by LayerCall::training, `evaluation`: graphs of one model in
/// both modes, whose loss is output `loss`. Their nodes are matched by module and name; each node of `evaluation` is in
/// the layer of that of `training`. Throws std::logic_error if a node of `evaluation` has no match, or a layer does not
/// read the same values and parameters in both modes: nodes that differ must be GraphNode::joined.
[[nodiscard]] model::Model model_of_modes(const OperatorGraph& training, const OperatorGraph& evaluation,
                                          const Granularity& granularity);

}  // namespace stagecraft::intake
