#pragma once

#include <optional>
#include <string>
#include <vector>

#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/torchscript/dry_sizes.h"
#include "executor/intake/torchscript/script_value.h"

namespace torch::jit {
struct Node;
}  // namespace torch::jit

namespace stagecraft {

/// What `node`, which calls operator `name`, gives where that is known before the model runs: it follows from
/// constants, from the batch size or from what `graph` says of shapes. Nothing where it must run. `where` begins
/// errors. Throws FormatError as dry_run.
[[nodiscard]] std::optional<std::vector<ScriptValue>> known_results(const OperatorGraph& graph, const DryRuns& runs,
                                                                    torch::jit::Node* node, const std::string& name,
                                                                    const std::vector<ScriptValue>& arguments,
                                                                    const std::string& where);

}  // namespace stagecraft
