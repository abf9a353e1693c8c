#pragma once

namespace stagecraft::partitioner {

/// True if the command line of stagecraft-plan asks for another planner's cost model: --objective-profile.
[[nodiscard]] bool asks_for_objective(int argc, char** argv);

/// The main function of stagecraft-plan with --objective-profile.
[[nodiscard]] int run_objective_command(int argc, char** argv);

}  // namespace stagecraft::partitioner
