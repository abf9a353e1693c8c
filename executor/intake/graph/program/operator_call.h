#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "executor/intake/graph/calls/operator_facts.h"
#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/graph/program/program_graph.h"

namespace stagecraft::intake {

/// The schema of the operator of `node`, one of the dispatcher. Throws FormatError that begins with `place`
/// for an operator or overload that this LibTorch does not have.
[[nodiscard]] const c10::FunctionSchema& schema_of(const ProgramNode& node, const std::string& place);

/// What `node` does, see operator_facts. `place` begins errors. Throws FormatError for a node that make_call refuses.
[[nodiscard]] NodeFacts facts_of(const ProgramGraph& graph, const ProgramNode& node, const std::string& place);

/// Runs `node` through the dispatcher, under the current autograd and autocast state. `slot` gives the slots of values;
/// -1: an unused result. Arguments are in the schema's order, coerced to its types, with defaults for absent ones.
/// Device arguments are the frame's device.
/// Throws FormatError that begins with `place` for an operator, overload or argument that this LibTorch does not have,
/// arguments of other types, missing ones, another number of results, and for higher-order operators other than
/// wrap_with_set_grad_enabled, wrap_with_autocast and cond. The operators of dropout_call are not LibTorch's.
[[nodiscard]] NodeCall make_call(const ProgramGraph& graph, const ProgramNode& node, const std::string& place,
                                 const std::function<int(int)>& slot);

/// Whether the node only computes numbers: sizes, Python's arithmetic.
[[nodiscard]] bool computes_numbers(const ProgramNode& node);

/// Whether the node contains graphs, see higher_order.h.
[[nodiscard]] bool is_higher_order(const ProgramNode& node);

/// "aten::relu_" and "" of torch.ops.aten.relu_.default; throws FormatError for another kind of target.
[[nodiscard]] c10::OperatorName operator_name(const std::string& target, const std::string& place);

}  // namespace stagecraft::intake
