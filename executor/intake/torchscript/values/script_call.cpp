#include "executor/intake/torchscript/values/script_call.h"

#include <ATen/core/List.h>

#include <stdexcept>
#include <utility>

#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

/// `argument` with slots in place of values.
ScriptArgument placed(ScriptArgument argument, const std::function<int(int)>& slot) {
  if (argument.form == ScriptArgument::Form::Value) argument.value = slot(argument.value);
  for (ScriptArgument& part : argument.parts) part = placed(std::move(part), slot);
  return argument;
}

c10::IValue made(const ScriptArgument& argument, const Frame& frame) {
  switch (argument.form) {
    case ScriptArgument::Form::Constant:
      return argument.constant;
    case ScriptArgument::Form::Value:
      return frame.slots[to_index(argument.value)];
    case ScriptArgument::Form::Device:
      return frame.device;
    case ScriptArgument::Form::List: {
      c10::impl::GenericList list(argument.element);
      list.reserve(argument.parts.size());
      for (const ScriptArgument& part : argument.parts) list.push_back(made(part, frame));
      return list;
    }
    case ScriptArgument::Form::Tuple: {
      std::vector<c10::IValue> items;
      items.reserve(argument.parts.size());
      for (const ScriptArgument& part : argument.parts) items.push_back(made(part, frame));
      return c10::ivalue::Tuple::create(std::move(items));
    }
  }
  return {};
}

}  // namespace

NodeCall script_call(const ScriptCall& call, const std::function<int(int)>& slot) {
  ScriptCall bound = call;
  for (ScriptArgument& argument : bound.arguments) argument = placed(std::move(argument), slot);
  for (ScriptResult& result : bound.results) {
    if (result.value >= 0) result.value = slot(result.value);
    if (!result.parts) continue;
    for (int& part : *result.parts) part = slot(part);
  }
  return [bound = std::move(bound)](Frame& frame) {
    auto& stack = frame.stack;
    stack.clear();
    for (const ScriptArgument& argument : bound.arguments) stack.push_back(made(argument, frame));
    bound.run(stack);
    for (std::size_t r = 0; r < bound.results.size(); ++r) {
      const ScriptResult& result = bound.results[r];
      if (!result.parts) {
        if (result.value >= 0) frame.slots[to_index(result.value)] = std::move(stack[r]);
        continue;
      }
      const c10::List<at::Tensor> list = std::move(stack[r]).toTensorList();
      if (list.size() != result.parts->size()) {
        throw std::runtime_error(bound.place + ": gave " + std::to_string(list.size()) + " tensors, and " +
                                 std::to_string(result.parts->size()) + " when the file was read");
      }
      for (std::size_t i = 0; i < list.size(); ++i) {
        if ((*result.parts)[i] >= 0) frame.slots[to_index((*result.parts)[i])] = list.get(i);
      }
    }
    stack.clear();
  };
}

}  // namespace stagecraft::intake
