#pragma once

#include "executor/intake/graph/program/program_graph.h"

namespace stagecraft::intake {

/// `graph` with evaluation_value for every argument that has one, including inner graphs.
[[nodiscard]] ProgramGraph evaluating(ProgramGraph graph);

}  // namespace stagecraft::intake
