#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::intake {

/// What matters to layers about a node's arguments and results: indices of values of its graph.
struct NodeFacts {
  std::vector<int> writes;
  std::vector<std::pair<int, int>> aliases;
  std::vector<std::pair<int, double>> decays;
  std::vector<int> only_writes;  ///< GraphNode::only_writes
  bool random = false;
  bool repeatable = false;
};

/// What is known of an argument before the call runs.
struct CallArgument {
  std::vector<int> tensors = {};             ///< values that are tensors, in it
  int value = -1;                            ///< the value that it is, if it is one
  std::optional<c10::IValue> constant = {};  ///< what it is in every run, if that is known
};

/// What a call of an operator does: from its schema, its tags (none if `op` is null: unknown to the dispatcher) and
/// facts missing from both: batch norm updates its statistics, dropout with probability 0 returns its argument.
/// `arguments` are in the schema's order, with defaults for absent ones; `results` are the values of each return.
/// `place` begins errors. Throws FormatError for an embedding with sparse gradients.
[[nodiscard]] NodeFacts operator_facts(const c10::FunctionSchema& schema, const c10::OperatorHandle* op,
                                       const std::vector<CallArgument>& arguments,
                                       const std::vector<std::vector<int>>& results, const std::string& place);

}  // namespace stagecraft::intake
