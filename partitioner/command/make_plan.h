#pragma once

#include "partitioner/command/plan_command.h"

// For plan_tool.cpp only: what stagecraft plan does.

namespace stagecraft::partitioner {

/// Reads the files of the request, finds the plan, prints it with what was compared, and writes it where asked. Throws
/// NoAnswerError if no plan is found, and what readers and strategies throw for wrong input.
void make_plan(PlanRequest& request);

}  // namespace stagecraft::partitioner
