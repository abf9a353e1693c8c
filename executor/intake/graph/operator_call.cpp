#include "executor/intake/graph/operator_call.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <memory>
#include <type_traits>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/intake/graph/higher_order.h"
#include "executor/intake/graph/number_call.h"

namespace stagecraft {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};

/// One argument on its way to the stack.
struct Push {
  enum class Form { Constant, Slot, Float, Wrapped, Tensors, OptionalTensors, Ints, Device, OnGpu };
  Form form = Form::Constant;
  c10::IValue constant = {};
  std::vector<std::pair<int, std::int64_t>> parts = {};  ///< (slot, or -1 and then a number)
};

at::Tensor wrapped(const c10::Scalar& number) {
  at::Tensor out = at::scalar_tensor(number, at::TensorOptions(number.type()));
  out.unsafeGetTensorImpl()->set_wrapped_number(true);
  return out;
}

c10::Scalar scalar_of(const c10::IValue& value) { return value.toScalar(); }

void push(const Push& what, Frame& frame) {
  auto& stack = frame.stack;
  switch (what.form) {
    case Push::Form::Constant:
      stack.push_back(what.constant);
      return;
    case Push::Form::Slot:
      stack.push_back(frame.slots[index(what.parts.front().first)]);
      return;
    case Push::Form::Float:
      stack.emplace_back(scalar_of(frame.slots[index(what.parts.front().first)]).toDouble());
      return;
    case Push::Form::Wrapped:
      stack.emplace_back(wrapped(scalar_of(frame.slots[index(what.parts.front().first)])));
      return;
    case Push::Form::Tensors: {
      c10::List<at::Tensor> list;
      list.reserve(what.parts.size());
      for (const auto& [slot, number] : what.parts) list.push_back(frame.slots[index(slot)].toTensor());
      stack.emplace_back(std::move(list));
      return;
    }
    case Push::Form::OptionalTensors: {
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(what.parts.size());
      for (const auto& [slot, number] : what.parts) {
        if (slot < 0) {
          list.push_back(std::nullopt);
        } else {
          list.push_back(frame.slots[index(slot)].toTensor());
        }
      }
      stack.emplace_back(std::move(list));
      return;
    }
    case Push::Form::Ints: {
      c10::List<std::int64_t> list;
      list.reserve(what.parts.size());
      for (const auto& [slot, number] : what.parts)
        list.push_back(slot < 0 ? number : scalar_of(frame.slots[index(slot)]).toLong());
      stack.emplace_back(std::move(list));
      return;
    }
    case Push::Form::Device:
      stack.emplace_back(frame.device);
      return;
    case Push::Form::OnGpu:
      stack.emplace_back(frame.device.is_cuda());
      return;
  }
}

using Kind = c10::TypeKind;

/// Turns what the file gives into what the schema wants.
class Coercion {
 public:
  Coercion(const ProgramGraph& graph, const c10::Argument& wanted, std::string place,
           const std::function<int(int)>& slot)
      : graph_(graph), wanted_(wanted), place_(std::move(place)), slot_(slot), type_(wanted.type()) {
    if (type_->kind() == Kind::OptionalType) {
      optional_ = true;
      type_ = type_->castRaw<c10::OptionalType>()->getElementType();
    }
    if (type_->kind() == Kind::ListType) element_ = type_->castRaw<c10::ListType>()->getElementType();
  }

  [[nodiscard]] Push operator()(const ArgumentValue& given) const {
    return std::visit(
        Overloaded{[&](std::monostate) { return none(); }, [&](ValueIndex value) { return from_value(value); },
                   [&](const std::vector<std::optional<ValueIndex>>& values) { return tensors(values); },
                   [&](bool value) { return number(c10::Scalar(value)); },
                   [&](std::int64_t value) { return number(c10::Scalar(value)); },
                   [&](double value) { return number(c10::Scalar(value)); },
                   [&](const std::complex<double>& value) {
                     return number(c10::Scalar(c10::complex<double>(value.real(), value.imag())));
                   },
                   [&](const std::string& text) { return word(text); },
                   [&](const std::vector<bool>& values) { return bools(values); },
                   [&](const std::vector<IntItem>& values) { return ints(values); },
                   [&](const std::vector<double>& values) { return floats(values); },
                   [&](const std::vector<std::string>& values) { return words(values); },
                   [&](c10::ScalarType value) { return code(static_cast<std::int64_t>(value)); },
                   [&](c10::Layout value) { return code(static_cast<std::int64_t>(value)); },
                   [&](c10::MemoryFormat value) { return code(static_cast<std::int64_t>(value)); },
                   [&](c10::Device) { return device(); },
                   [&](const std::shared_ptr<const ProgramGraph>&) -> Push { refuse("a graph"); }},
        given);
  }

 private:
  [[noreturn]] void refuse(const std::string& found) const {
    throw FormatError(place_ + ": argument \"" + wanted_.name() + "\": found " + found + ", wanted " +
                      wanted_.type()->str());
  }
  [[nodiscard]] static Push constant(c10::IValue value) { return {Push::Form::Constant, std::move(value), {}}; }

  [[nodiscard]] Push none() const {
    // An undefined tensor stands for a missing one.
    if (!optional_ && type_->kind() != Kind::NoneType) refuse("None");
    return constant(c10::IValue());
  }

  [[nodiscard]] Push from_value(ValueIndex value) const {
    const ProgramValue& given = graph_.values[index(value.index)];
    const int slot = slot_(value.index);
    const bool is_tensor = given.kind == ProgramValue::Kind::Tensor;
    switch (type_->kind()) {
      case Kind::TensorType:
        return {is_tensor ? Push::Form::Slot : Push::Form::Wrapped, {}, {{slot, 0}}};
      case Kind::FloatType:
        if (is_tensor) break;
        return {Push::Form::Float, {}, {{slot, 0}}};
      case Kind::IntType:
      case Kind::SymIntType:
        if (given.kind != ProgramValue::Kind::Int) break;
        return {Push::Form::Slot, {}, {{slot, 0}}};
      case Kind::BoolType:
        if (given.kind != ProgramValue::Kind::Bool) break;
        return {Push::Form::Slot, {}, {{slot, 0}}};
      case Kind::NumberType:
        if (is_tensor) break;
        return {Push::Form::Slot, {}, {{slot, 0}}};
      case Kind::ListType:
        if (given.kind == ProgramValue::Kind::Int) return ints({value});
        if (is_tensor && element_->kind() == Kind::TensorType) return tensors({value});
        break;
      default:
        break;
    }
    refuse((is_tensor ? "the tensor \"" : "the number \"") + given.name + "\"");
  }

  [[nodiscard]] Push tensors(const std::vector<std::optional<ValueIndex>>& values) const {
    if (!element_) refuse("a list of tensors");
    const bool optional = element_->kind() == Kind::OptionalType;
    Push out{optional ? Push::Form::OptionalTensors : Push::Form::Tensors, {}, {}};
    if (!optional && element_->kind() != Kind::TensorType) {
      if (!values.empty()) refuse("a list of tensors");
      return empty_list();
    }
    for (const std::optional<ValueIndex>& value : values) {
      if (!value && !optional) refuse("a list with None in it");
      if (value && graph_.values[index(value->index)].kind != ProgramValue::Kind::Tensor)
        refuse("a list with a number");
      out.parts.emplace_back(value ? slot_(value->index) : -1, 0);
    }
    return out;
  }

  [[nodiscard]] Push number(const c10::Scalar& value) const {
    switch (type_->kind()) {
      case Kind::TensorType:
        return constant(wrapped(value));
      case Kind::FloatType:
        if (value.isComplex()) break;
        return constant(value.toDouble());
      case Kind::IntType:
      case Kind::SymIntType:
        if (!value.isIntegral(/*includeBool=*/true)) break;
        return constant(value.toLong());
      case Kind::BoolType:
        if (!value.isBoolean()) break;
        // torch.export traces with cuDNN turned off and writes that down.
        if (wanted_.name() == "cudnn_enabled") return {Push::Form::OnGpu, {}, {}};
        return constant(value.toBool());
      case Kind::NumberType:
        return constant(c10::IValue(value));
      case Kind::ListType:
        if (element_->kind() == Kind::FloatType && !value.isComplex())
          return constant(c10::List<double>(repeated(value.toDouble())));
        if (is_int(element_->kind()) && value.isIntegral(false))
          return constant(c10::List<std::int64_t>(repeated(value.toLong())));
        break;
      default:
        break;
    }
    refuse(value.isBoolean() ? (value.toBool() ? "True" : "False")
                             : std::string("a number of type ") + c10::toString(value.type()));
  }

  template <typename T>
  [[nodiscard]] c10::List<T> repeated(T value) const {
    c10::List<T> out;
    for (int i = 0; i < std::max(1, wanted_.N().value_or(1)); ++i) out.push_back(value);
    return out;
  }

  static bool is_int(Kind kind) { return kind == Kind::IntType || kind == Kind::SymIntType; }

  [[nodiscard]] Push empty_list() const { return constant(c10::IValue(c10::impl::GenericList(element_))); }

  [[nodiscard]] Push ints(const std::vector<IntItem>& values) const {
    const auto list = [&] {
      Push out{Push::Form::Ints, {}, {}};
      bool fixed = true;
      c10::List<std::int64_t> numbers;
      for (const IntItem& item : values) {
        if (const auto* const value = std::get_if<ValueIndex>(&item)) {
          if (graph_.values[index(value->index)].kind != ProgramValue::Kind::Int) refuse("a list with no whole number");
          out.parts.emplace_back(slot_(value->index), 0);
          fixed = false;
        } else {
          out.parts.emplace_back(-1, std::get<std::int64_t>(item));
          numbers.push_back(std::get<std::int64_t>(item));
        }
      }
      return fixed ? constant(std::move(numbers)) : out;
    };
    if (type_->kind() == Kind::TensorType && values.size() == 1) refuse("a list of whole numbers");
    if (!element_) refuse("a list of whole numbers");
    if (is_int(element_->kind())) return list();
    std::vector<c10::Scalar> numbers;
    for (const IntItem& item : values) {
      if (!std::holds_alternative<std::int64_t>(item)) refuse("a list of whole numbers that depend on the batch size");
      numbers.emplace_back(std::get<std::int64_t>(item));
    }
    if (values.empty() && element_->kind() != Kind::FloatType && element_->kind() != Kind::NumberType) {
      if (element_->kind() == Kind::TensorType) return {Push::Form::Tensors, {}, {}};
      if (element_->kind() == Kind::OptionalType) return {Push::Form::OptionalTensors, {}, {}};
      return empty_list();
    }
    return scalars(numbers, "a list of whole numbers");
  }

  [[nodiscard]] Push floats(const std::vector<double>& values) const {
    if (!element_) refuse("a list of numbers");
    std::vector<c10::Scalar> numbers(values.begin(), values.end());
    return scalars(numbers, "a list of numbers");
  }

  [[nodiscard]] Push scalars(const std::vector<c10::Scalar>& numbers, const std::string& found) const {
    if (element_->kind() == Kind::FloatType) {
      c10::List<double> out;
      for (const c10::Scalar& each : numbers) out.push_back(each.toDouble());
      return constant(std::move(out));
    }
    if (element_->kind() == Kind::NumberType) {
      c10::impl::GenericList out(c10::NumberType::get());
      for (const c10::Scalar& each : numbers) out.push_back(c10::IValue(each));
      return constant(std::move(out));
    }
    refuse(found);
  }

  [[nodiscard]] Push bools(const std::vector<bool>& values) const {
    if (!element_ || element_->kind() != Kind::BoolType) refuse("a list of truth values");
    c10::List<bool> out;
    for (const bool each : values) out.push_back(each);
    return constant(std::move(out));
  }

  [[nodiscard]] Push word(const std::string& text) const {
    if (type_->kind() != Kind::StringType) refuse("\"" + text + "\"");
    return constant(text);
  }

  [[nodiscard]] Push words(const std::vector<std::string>& values) const {
    if (!element_ || element_->kind() != Kind::StringType) refuse("a list of words");
    c10::List<std::string> out;
    for (const std::string& each : values) out.push_back(each);
    return constant(std::move(out));
  }

  [[nodiscard]] Push code(std::int64_t value) const {
    if (!is_int(type_->kind())) refuse("a type, layout or memory format");
    return constant(value);
  }

  [[nodiscard]] Push device() const {
    if (type_->kind() != Kind::DeviceObjType) refuse("a device");
    return {Push::Form::Device, {}, {}};
  }

  const ProgramGraph& graph_;
  const c10::Argument& wanted_;
  std::string place_;
  const std::function<int(int)>& slot_;
  c10::TypePtr type_;
  c10::TypePtr element_;
  bool optional_ = false;
};

bool is_higher_order(const ProgramNode& node) { return node.target.starts_with("torch.ops.higher_order."); }

c10::OperatorHandle find_operator(const ProgramNode& node, const std::string& place) {
  const c10::OperatorName name = operator_name(node.target, place);
  const auto found = c10::Dispatcher::singleton().findSchema(name);
  if (found) return *found;
  const std::string space = name.name.substr(0, name.name.find("::"));
  if (space != "aten" && space != "prims") {
    throw FormatError(place + ": operator " + node.target + " belongs to \"" + space +
                      "\", which is a library of Python's; wanted are operators of PyTorch itself, \"aten\"");
  }
  throw FormatError(place + ": LibTorch 2.11 has no operator " + node.target);
}

/// The given arguments in the schema's order; null: left out.
std::vector<const ProgramArgument*> in_order(const c10::FunctionSchema& schema, const ProgramNode& node,
                                             const std::string& place) {
  std::vector<const ProgramArgument*> out(schema.arguments().size());
  std::size_t next = 0;
  for (const ProgramArgument& given : node.arguments) {
    std::size_t at = next;
    if (!given.name.empty()) {
      const auto it = std::ranges::find(schema.arguments(), given.name, &c10::Argument::name);
      if (it == schema.arguments().end()) {
        std::vector<std::string> known;
        for (const c10::Argument& each : schema.arguments()) known.push_back(each.name());
        throw FormatError(place + ": " + unknown_name("argument", given.name, known));
      }
      at = static_cast<std::size_t>(it - schema.arguments().begin());
    }
    if (at >= out.size() || out[at]) {
      throw FormatError(place + ": argument \"" + given.name + "\" is there twice, or one more than the operator has");
    }
    out[at] = &given;
    next = at + 1;
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    const c10::Argument& wanted = schema.arguments()[i];
    if (!out[i] && !wanted.default_value())
      throw FormatError(place + ": argument \"" + wanted.name() + "\" is missing");
  }
  return out;
}

void check_results(const c10::FunctionSchema& schema, const ProgramNode& node, const std::string& place) {
  // An operator without returns may be written down with one that is None.
  const bool nothing =
      std::ranges::all_of(node.results, [](const ProgramResult& r) { return r.values.empty() && !r.list; });
  if (schema.returns().empty() && nothing) return;
  if (schema.returns().size() != node.results.size()) {
    throw FormatError(place + ": found " + std::to_string(node.results.size()) + " results, the operator gives " +
                      std::to_string(schema.returns().size()));
  }
  for (std::size_t i = 0; i < node.results.size(); ++i) {
    const bool list = schema.returns()[i].type()->kind() == Kind::ListType;
    if (node.results[i].values.empty() && !node.results[i].list) continue;
    if (list != node.results[i].list) {
      throw FormatError(place + ": result " + std::to_string(i) + ": found " +
                        (node.results[i].list ? "a list" : "one value") + ", wanted " +
                        schema.returns()[i].type()->str());
    }
  }
}

/// Tensors of an argument.
std::vector<int> tensors_of(const ProgramGraph& graph, const ArgumentValue& value) {
  std::vector<int> out;
  const auto add = [&](ValueIndex item) {
    if (graph.values[index(item.index)].kind == ProgramValue::Kind::Tensor) out.push_back(item.index);
  };
  if (const auto* const one = std::get_if<ValueIndex>(&value)) add(*one);
  if (const auto* const many = std::get_if<std::vector<std::optional<ValueIndex>>>(&value)) {
    for (const auto& each : *many) {
      if (each) add(*each);
    }
  }
  return out;
}

}  // namespace

c10::OperatorName operator_name(const std::string& target, const std::string& place) {
  const std::string prefix = "torch.ops.";
  const std::size_t space = target.find('.', prefix.size());
  const std::size_t overload = target.rfind('.');
  if (!target.starts_with(prefix) || space == std::string::npos || overload <= space) {
    throw FormatError(place + ": target \"" + target + "\", wanted torch.ops.NAMESPACE.OPERATOR.OVERLOAD");
  }
  const std::string last = target.substr(overload + 1);
  return {target.substr(prefix.size(), space - prefix.size()) + "::" + target.substr(space + 1, overload - space - 1),
          last == "default" ? "" : last};
}

NodeFacts facts_of(const ProgramGraph& graph, const ProgramNode& node, const std::string& place) {
  if (is_higher_order(node)) return higher_order_facts(graph, node, place);
  const c10::OperatorHandle op = find_operator(node, place);
  const c10::FunctionSchema& schema = op.schema();
  const auto given = in_order(schema, node, place);
  check_results(schema, node, place);
  std::vector<CallArgument> arguments;
  for (std::size_t i = 0; i < given.size(); ++i) {
    CallArgument argument;
    if (!given[i]) {
      argument.constant = *schema.arguments()[i].default_value();
    } else {
      const ArgumentValue& value = given[i]->value;
      argument.tensors = tensors_of(graph, value);
      if (const auto* const one = std::get_if<ValueIndex>(&value)) argument.value = one->index;
      if (const auto* const flag = std::get_if<bool>(&value)) argument.constant = *flag;
      if (const auto* const whole = std::get_if<std::int64_t>(&value)) argument.constant = *whole;
      if (const auto* const number = std::get_if<double>(&value)) argument.constant = *number;
    }
    arguments.push_back(std::move(argument));
  }
  std::vector<std::vector<int>> results;
  for (const ProgramResult& result : node.results) {
    std::vector<int> values;
    for (const ValueIndex value : result.values) values.push_back(value.index);
    results.push_back(std::move(values));
  }
  return operator_facts(schema, &op, arguments, results, place);
}

NodeCall make_call(const ProgramGraph& graph, const ProgramNode& node, const std::string& place,
                   const std::function<int(int)>& slot) {
  if (is_higher_order(node)) return higher_order_call(graph, node, place, slot);
  if (computes_numbers(node)) return number_call(graph, node, place, slot);
  const c10::OperatorHandle op = find_operator(node, place);
  const c10::FunctionSchema& schema = op.schema();
  check_results(schema, node, place);
  const auto given = in_order(schema, node, place);
  std::vector<Push> pushes;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const c10::Argument& wanted = schema.arguments()[i];
    pushes.push_back(given[i] ? Coercion(graph, wanted, place, slot)(given[i]->value)
                              : Push{Push::Form::Constant, *wanted.default_value(), {}});
  }
  struct Result {
    int slot = -1;
    bool list = false;
    std::vector<int> slots = {};
  };
  std::vector<Result> results;
  for (std::size_t r = 0; r < schema.returns().size(); ++r) {
    Result result;
    if (r < node.results.size()) {
      result.list = node.results[r].list;
      for (const ValueIndex value : node.results[r].values) result.slots.push_back(slot(value.index));
      if (!result.list && !result.slots.empty()) result.slot = result.slots.front();
    }
    results.push_back(std::move(result));
  }
  return [op, pushes = std::move(pushes), results = std::move(results), place](Frame& frame) {
    auto& stack = frame.stack;
    stack.clear();
    for (const Push& each : pushes) push(each, frame);
    op.callBoxed(stack);
    for (std::size_t r = 0; r < results.size(); ++r) {
      const Result& result = results[r];
      if (!result.list) {
        if (result.slot >= 0) frame.slots[index(result.slot)] = std::move(stack[r]);
        continue;
      }
      const c10::List<at::Tensor> list = std::move(stack[r]).toTensorList();
      if (list.size() != result.slots.size()) {
        throw std::runtime_error(place + ": gave " + std::to_string(list.size()) + " tensors, the file says " +
                                 std::to_string(result.slots.size()));
      }
      for (std::size_t i = 0; i < result.slots.size(); ++i) {
        if (result.slots[i] >= 0) frame.slots[index(result.slots[i])] = list.get(i);
      }
    }
    stack.clear();
  };
}

}  // namespace stagecraft
