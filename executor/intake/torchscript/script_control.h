#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor/intake/torchscript/script_module.h"
#include "executor/intake/torchscript/script_value.h"

namespace torch::jit {
struct Graph;
struct Node;
struct Value;
}  // namespace torch::jit

namespace stagecraft::intake {

/// A branch or loop as separate code.
struct ScriptControl {
  std::function<void(torch::jit::Stack&)> run;
  std::vector<ScriptValue> arguments;
  std::vector<std::size_t> written;                          ///< of `arguments`: tensors that it may change
  std::vector<std::pair<std::size_t, std::size_t>> aliases;  ///< (result, of `arguments`) that may share memory
  bool random = false;
};

/// `node` with all its calls, operators unchanged and in order. `lookup` gives the values of outer names,
/// `tensor_value` that of a module's tensor. Throws FormatError that begins with `place` for what torchscript_graph
/// refuses.
[[nodiscard]] ScriptControl script_control(torch::jit::Node* node, ScriptState& state,
                                           const std::function<ScriptValue(torch::jit::Value*)>& lookup,
                                           const std::function<ScriptValue(const at::Tensor&)>& tensor_value,
                                           const std::string& place);

}  // namespace stagecraft::intake
