#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "executor/intake/graph/operator_facts.h"
#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/graph/program_graph.h"

namespace stagecraft {

/// What `node` does, see operator_facts. `place` begins errors. Throws FormatError for a node that make_call refuses.
[[nodiscard]] NodeFacts facts_of(const ProgramGraph& graph, const ProgramNode& node, const std::string& place);

/// Runs `node` through the dispatcher, so under whatever autograd and autocast are about. Values come from and go to
/// the slots that `slot` says; -1: a result that nobody wants. Arguments stand in the order of the schema, coerced to
/// its types; defaults fill what is left out. Device arguments are the frame's device.
/// Throws FormatError that begins with `place` for an operator, overload or argument that this LibTorch does not have,
/// arguments of other types, missing ones, another number of results, and for higher-order operators other than
/// wrap_with_set_grad_enabled, wrap_with_autocast and cond.
[[nodiscard]] NodeCall make_call(const ProgramGraph& graph, const ProgramNode& node, const std::string& place,
                                 const std::function<int(int)>& slot);

/// Whether the node computes numbers alone: sizes, Python's arithmetic.
[[nodiscard]] bool computes_numbers(const ProgramNode& node);

/// "aten::relu_" and "" of torch.ops.aten.relu_.default; throws FormatError for another kind of target.
[[nodiscard]] c10::OperatorName operator_name(const std::string& target, const std::string& place);

}  // namespace stagecraft
