#include "executor/intake/torchscript/values/script_value.h"

#include <ATen/core/List.h>

#include <algorithm>

namespace stagecraft::intake {

ScriptValue constant_value_of(const c10::IValue& value) {
  const bool list = value.isList();
  if (!list && !value.isTuple()) return {.kind = ScriptValue::Kind::Constant, .constant = value};
  auto items = std::make_shared<ScriptItems>();
  items->tuple = !list;
  if (list) {
    items->element = value.toList().elementType();
    for (const c10::IValue& item : value.toListRef()) items->items.push_back(constant_value_of(item));
  } else {
    for (const c10::IValue& item : value.toTupleRef().elements()) items->items.push_back(constant_value_of(item));
  }
  return {.kind = ScriptValue::Kind::Items, .items = std::move(items)};
}

c10::IValue in_run(const ScriptValue& value, std::size_t run) {
  switch (value.kind) {
    case ScriptValue::Kind::Constant:
    case ScriptValue::Kind::Module:
      return value.constant;
    case ScriptValue::Kind::Number:
    case ScriptValue::Kind::Value:
      return value.runs[run];
    case ScriptValue::Kind::Items:
      break;
  }
  if (value.items->tuple) {
    std::vector<c10::IValue> items;
    for (const ScriptValue& item : value.items->items) items.push_back(in_run(item, run));
    return c10::ivalue::Tuple::create(std::move(items));
  }
  c10::impl::GenericList list(value.items->element);
  for (const ScriptValue& item : value.items->items) list.push_back(in_run(item, run));
  return list;
}

void for_each_value(const ScriptValue& value, const std::function<void(const ScriptValue&)>& visit) {
  if (value.kind != ScriptValue::Kind::Items) {
    visit(value);
    return;
  }
  for (const ScriptValue& item : value.items->items) for_each_value(item, visit);
}

bool is_constant(const ScriptValue& value) {
  bool out = true;
  for_each_value(value, [&](const ScriptValue& part) { out = out && part.kind == ScriptValue::Kind::Constant; });
  return out;
}

bool is_static(const ScriptValue& value) {
  bool out = true;
  for_each_value(value, [&](const ScriptValue& part) {
    out = out && (part.kind == ScriptValue::Kind::Constant || part.kind == ScriptValue::Kind::Number);
  });
  return out;
}

}  // namespace stagecraft::intake
