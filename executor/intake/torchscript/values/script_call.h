#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "executor/intake/graph/operator_graph.h"

namespace stagecraft::intake {

/// An argument of a call in TorchScript: a constant, a value of the graph, or a list or tuple of such.
struct ScriptArgument {
  enum class Form { Constant, Value, List, Tuple, Device };
  Form form = Form::Constant;
  c10::IValue constant = {};
  int value = -1;
  std::vector<ScriptArgument> parts = {};
  c10::TypePtr element = {};  ///< of a List
};

/// A result of a call: a value of the graph (-1: unused), or a list of such tensors.
struct ScriptResult {
  int value = -1;
  std::optional<std::vector<int>> parts = {};
};

/// A call in a TorchScript graph. `run` takes its arguments from the stack and leaves its results there; it is
/// thread-safe.
struct ScriptCall {
  std::function<void(torch::jit::Stack&)> run;
  std::vector<ScriptArgument> arguments;
  std::vector<ScriptResult> results;
  std::string place;
};

/// Runs `call` on a frame. Device arguments are the frame's device.
[[nodiscard]] NodeCall script_call(const ScriptCall& call, const std::function<int(int)>& slot);

}  // namespace stagecraft::intake
