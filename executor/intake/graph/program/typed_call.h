#pragma once

#include <ATen/core/operator_name.h>

#include <optional>
#include <string>
#include <vector>

#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/graph/program/argument_push.h"

namespace stagecraft::intake {

/// Runs one of the operators that transformers call most, through the dispatcher but without a stack of boxed values,
/// which costs about as much as dispatching them. `arguments` are in the schema's order; `results` are the slots of the
/// tensor, or of the list of tensors, that the operator returns; -1: unused. Nothing for other operators, and for
/// arguments that must be made anew for each call. `place` begins the error of a list of another length.
[[nodiscard]] std::optional<NodeCall> typed_call(const c10::OperatorName& name,
                                                 const std::vector<ArgumentPush>& arguments,
                                                 const std::vector<int>& results, const std::string& place);

/// Puts `tensors` into `slots`. Throws std::runtime_error that begins with `place` if there are more or fewer.
void put_list(std::vector<at::Tensor> tensors, const std::vector<int>& slots, Frame& frame, const std::string& place);

}  // namespace stagecraft::intake
