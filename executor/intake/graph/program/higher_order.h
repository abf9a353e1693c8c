#pragma once

#include <functional>
#include <string>

#include "executor/intake/graph/program/operator_call.h"
#include "executor/intake/graph/program/program_graph.h"

namespace stagecraft::intake {

/// The block of a node. Throws FormatError that begins with `place` for arguments of other kinds.
[[nodiscard]] GraphBlock graph_block(const ProgramBlock& block, const std::string& place);

/// facts_of and make_call for operators that contain graphs: cond, and blocks that could not be flattened or are inside
/// one.
[[nodiscard]] NodeFacts higher_order_facts(const ProgramGraph& graph, const ProgramNode& node,
                                           const std::string& place);
[[nodiscard]] NodeCall higher_order_call(const ProgramGraph& graph, const ProgramNode& node, const std::string& place,
                                         const std::function<int(int)>& slot);

}  // namespace stagecraft::intake
