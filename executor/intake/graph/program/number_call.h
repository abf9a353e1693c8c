#pragma once

#include <functional>
#include <string>

#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/graph/program/program_graph.h"

namespace stagecraft::intake {

/// Runs a node that computes numbers: torch.export writes Python's arithmetic (`_operator.add`, `torch.sym_float`,
/// `math.trunc`) and sizes of tensors (`torch.ops.aten.sym_size.int`) as nodes. Integer division and remainder round as
/// in Python. Throws FormatError that begins with `place` for another operation, listing these.
[[nodiscard]] NodeCall number_call(const ProgramGraph& graph, const ProgramNode& node, const std::string& place,
                                   const std::function<int(int)>& slot);

}  // namespace stagecraft::intake
