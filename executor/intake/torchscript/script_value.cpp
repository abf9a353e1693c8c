#include "executor/intake/torchscript/script_value.h"

#include <ATen/core/List.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
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

namespace {

template <std::size_t N>
bool is_one_of(const std::string& name, const std::array<const char*, N>& names) {
  return std::ranges::any_of(names, [&](const char* known) { return name == known; });
}

}  // namespace

bool tells_of_shape(const std::string& name) {
  static constexpr std::array kNames{
      "aten::size",  "aten::dim",    "aten::numel",  "aten::len",    "aten::is_floating_point", "aten::is_complex",
      "prim::dtype", "prim::device", "aten::stride", "prim::layout", "aten::is_contiguous"};
  return is_one_of(name, kNames);
}

bool keeps_affine(const std::string& name) {
  static constexpr std::array kNames{"aten::add",   "aten::sub",         "aten::mul",         "aten::neg",
                                     "aten::Int",   "prim::NumToTensor", "aten::IntImplicit", "aten::ScalarImplicit",
                                     "aten::size",  "aten::dim",         "aten::len",         "aten::numel",
                                     "aten::stride"};
  return is_one_of(name, kNames);
}

bool computes_traced_size(const std::string& name) {
  static constexpr std::array kNames{"prim::NumToTensor",  "aten::add",       "aten::sub",  "aten::mul", "aten::neg",
                                     "aten::floor_divide", "aten::remainder", "aten::rsub", "aten::div"};
  return is_one_of(name, kNames);
}

bool has_side_effects(const std::string& name) {
  static constexpr std::array kNames{
      "aten::set_grad_enabled", "aten::manual_seed", "aten::backward",         "aten::wait", "prim::fork",
      "prim::awaitable",        "aten::set_data",    "aten::_set_grad_enabled"};
  return is_one_of(name, kNames) || name.starts_with("prim::rpc_") || name.starts_with("aten::set_num_threads");
}

bool moves_numbers(const std::string& name) {
  static constexpr std::array kNames{"view",    "reshape",   "flatten", "slice", "select", "contiguous", "clone",
                                     "permute", "transpose", "expand",  "alias", "to",     "unsqueeze",  "squeeze"};
  return is_one_of(name, kNames);
}

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

namespace {

constexpr std::size_t kLongestList = 200'000;

}  // namespace

std::optional<std::vector<ScriptValue>> on_items(const std::string& name, const std::vector<ScriptValue>& arguments,
                                                 std::size_t results, const std::string& place) {
  using Results = std::vector<ScriptValue>;
  if (name == "aten::__is__" || name == "aten::__isnot__") {
    const bool a = arguments[0].is_none();
    const bool b = arguments[1].is_none();
    if (a || b) return Results{constant_value_of((name == "aten::__is__") == (a && b))};
  }
  if (name == "aten::is_grad_enabled") return Results{constant_value_of(true)};
  if (arguments.empty() || arguments[0].kind != ScriptValue::Kind::Items) return std::nullopt;
  std::vector<ScriptValue>& items = arguments[0].items->items;
  const auto list = [&](std::vector<ScriptValue> members) {
    auto out = std::make_shared<ScriptItems>(*arguments[0].items);
    out->items = std::move(members);
    return Results{{.kind = ScriptValue::Kind::Items, .items = std::move(out)}};
  };
  const auto whole = [&](std::size_t i, std::int64_t otherwise) -> std::optional<std::int64_t> {
    if (arguments.size() <= i || arguments[i].is_none()) return otherwise;
    if (arguments[i].kind != ScriptValue::Kind::Constant || !arguments[i].constant.isInt()) return std::nullopt;
    return arguments[i].constant.toInt();
  };
  const auto count = static_cast<std::int64_t>(items.size());
  if (name == "prim::TupleUnpack" || name == "prim::ListUnpack") {
    if (items.size() != results)
      throw FormatError(ErrorKind::UnsupportedModel, place + ": found a list of " + std::to_string(items.size()) +
                                                         ", expected " + std::to_string(results));
    return items;
  }
  if (name == "aten::len") return Results{constant_value_of(count)};
  if (name == "prim::TupleIndex" || name == "aten::__getitem__") {
    const auto index = whole(1, 0);
    if (!index) return std::nullopt;
    const std::int64_t at = *index < 0 ? *index + count : *index;
    if (at < 0 || at >= count)
      throw FormatError(ErrorKind::UnsupportedModel,
                        place + ": index " + std::to_string(*index) + " of a list of " + std::to_string(count));
    return Results{items[to_index(at)]};
  }
  if (name == "aten::list") return list(items);
  if (name == "aten::append" && items.size() < kLongestList) {
    items.push_back(arguments[1]);
    return Results(results, arguments[0]);
  }
  if (name == "aten::add" && arguments[1].kind == ScriptValue::Kind::Items) {
    std::vector<ScriptValue> joined = items;
    joined.insert(joined.end(), arguments[1].items->items.begin(), arguments[1].items->items.end());
    return list(std::move(joined));
  }
  if (name == "aten::slice") {
    const auto step = whole(3, 1);
    auto begin = whole(1, 0);
    auto end = whole(2, std::numeric_limits<std::int64_t>::max());
    if (!step || *step != 1 || !begin || !end) return std::nullopt;
    const auto inside = [&](std::int64_t at) { return std::clamp<std::int64_t>(at < 0 ? at + count : at, 0, count); };
    begin = inside(*begin);
    end = std::max(*begin, inside(*end));
    return list({items.begin() + *begin, items.begin() + *end});
  }
  return std::nullopt;
}

}  // namespace stagecraft::intake
