#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/graph/program/program_graph.h"

namespace stagecraft::intake {

/// One argument to push onto the stack.
struct ArgumentPush {
  enum class Form { Constant, Slot, Float, Wrapped, Tensors, OptionalTensors, Ints, Device, OnGpu };
  Form form = Form::Constant;
  c10::IValue constant = {};
  std::vector<std::pair<int, std::int64_t>> parts = {};  ///< (slot, or -1 and then a number)
};

/// How to push `given` for the schema's argument `wanted`: coerced to its type. `slot` gives the slots of values.
/// Throws FormatError that begins with `place`, naming the argument, for a value of another type.
[[nodiscard]] ArgumentPush argument_push(const ProgramGraph& graph, const c10::Argument& wanted,
                                         const ArgumentValue& given, const std::string& place,
                                         const std::function<int(int)>& slot);

/// Pushes the argument onto the frame's stack. Device arguments are the frame's device.
void push(const ArgumentPush& what, Frame& frame);

}  // namespace stagecraft::intake
