#pragma once

#include "executor/intake/pt2/calls/program_graph.h"

namespace stagecraft::intake {

/// `graph` with evaluation_value for every argument that has one, including inner graphs.
[[nodiscard]] ProgramGraph evaluating(ProgramGraph graph);

}  // namespace stagecraft::intake
