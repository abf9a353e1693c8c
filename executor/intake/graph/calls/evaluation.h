#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <optional>

#include "executor/intake/graph/operator_graph.h"

namespace stagecraft::intake {

/// The value in evaluation of argument `index` of a call of `schema`, if it differs from `given`, its value in
/// training: dropout is off, and a normalisation that has running statistics (`statistics`) uses them.
[[nodiscard]] std::optional<c10::IValue> evaluation_value(const c10::FunctionSchema& schema, std::size_t index,
                                                          const c10::IValue& given, bool statistics);

/// Throws FormatError with place_of the node and advice if value `root` of `graph` depends, in evaluation, on a buffer
/// or constant that a node writes, or, unless graph.exact_evaluation, on random numbers; or if graph.evaluates is
/// false.
void check_evaluation(const OperatorGraph& graph, int root);

}  // namespace stagecraft::intake
