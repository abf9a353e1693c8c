#pragma once

#include <memory>

#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/graph/program/program_graph.h"

namespace stagecraft::intake {

/// Adds the values and nodes of `program` to `graph`, which has none, and how to run them: graph.program and
/// graph.compile. Nodes and values have the same numbers in both. Values that no node gives keep the origin Node and no
/// source until the caller sets them. Throws FormatError with place_of the node as make_call does.
void add_program(OperatorGraph& graph, std::shared_ptr<const ProgramGraph> program);

}  // namespace stagecraft::intake
