#pragma once

#include <functional>
#include <string>

#include "executor/intake/operator_call.h"

namespace stagecraft {

/// facts_of and make_call for operators that hold graphs: wrap_with_set_grad_enabled, wrap_with_autocast, cond.
[[nodiscard]] NodeFacts higher_order_facts(const ProgramGraph& graph, const ProgramNode& node,
                                           const std::string& place);
[[nodiscard]] NodeCall higher_order_call(const ProgramGraph& graph, const ProgramNode& node, const std::string& place,
                                         const std::function<int(int)>& slot);

}  // namespace stagecraft
