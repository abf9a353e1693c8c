#pragma once

#include <optional>
#include <string>
#include <vector>

#include "executor/intake/graph/dry_sizes.h"
#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/torchscript/values/script_value.h"

namespace torch::jit {
struct Node;
}  // namespace torch::jit

namespace stagecraft::intake {

/// The results of `node`, which calls operator `name`, if they are known before the model runs, from constants, the
/// batch size or the shapes in `graph`. Absent if it must run. `where` begins errors. Throws FormatError as dry_run
/// does.
[[nodiscard]] std::optional<std::vector<ScriptValue>> known_results(const OperatorGraph& graph, const DryRuns& runs,
                                                                    torch::jit::Node* node, const std::string& name,
                                                                    const std::vector<ScriptValue>& arguments,
                                                                    const std::string& where);

}  // namespace stagecraft::intake
