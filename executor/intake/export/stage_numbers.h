#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/format/cursor.h"
#include "executor/intake/graph/size_expression.h"

// Only for stage_archive.cpp: nodes of torch.export's JSON.

namespace stagecraft::intake {

/// A node that calls `target` and returns `result`; its name is the value's.
[[nodiscard]] format::Json new_node(const std::string& target, const std::string& name,
                                    const std::vector<std::pair<std::string, format::Json>>& arguments,
                                    const format::Json& result);

/// A number that follows from a tensor's size.
struct WantedNumber {
  std::string tensor;
  int axis = 0;
  SizeExpression extent;      ///< of the tensor in that axis: a symbol or a multiple of one
  std::int64_t hint = 1;      ///< the extent when the model was exported
  std::string number;         ///< name of the value
  SizeExpression expression;  ///< of the same symbol
};

struct NumberNodes {
  std::vector<format::Json> nodes;                            ///< in order
  std::vector<std::pair<std::string, format::Json>> entries;  ///< of sym_int_values, for values with new names
};

/// Nodes that compute it; `fresh` makes an unused name from the requested one.
[[nodiscard]] NumberNodes number_nodes(const WantedNumber& wanted,
                                       const std::function<std::string(const std::string&)>& fresh);

}  // namespace stagecraft::intake
