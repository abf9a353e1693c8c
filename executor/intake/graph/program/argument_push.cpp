#include "executor/intake/graph/program/argument_push.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <complex>
#include <optional>
#include <variant>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

using Kind = c10::TypeKind;

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};

at::Tensor wrapped(const c10::Scalar& number) {
  at::Tensor out = at::scalar_tensor(number, at::TensorOptions(number.type()));
  out.unsafeGetTensorImpl()->set_wrapped_number(true);
  return out;
}

c10::Scalar scalar_of(const c10::IValue& value) { return value.toScalar(); }

/// Converts the file's arguments to the schema's types.
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

  [[nodiscard]] ArgumentPush operator()(const ArgumentValue& given) const {
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
                   [&](const std::shared_ptr<const ProgramGraph>&) -> ArgumentPush { refuse("a graph"); }},
        given);
  }

 private:
  [[noreturn]] void refuse(const std::string& found) const {
    throw FormatError(ErrorKind::UnsupportedModel, place_ + ": argument \"" + wanted_.name() + "\": found " + found +
                                                       ", expected " + wanted_.type()->str());
  }
  [[nodiscard]] static ArgumentPush constant(c10::IValue value) {
    return {ArgumentPush::Form::Constant, std::move(value), {}};
  }

  [[nodiscard]] ArgumentPush none() const {
    // An undefined tensor represents a missing one.
    if (!optional_ && type_->kind() != Kind::NoneType) refuse("None");
    return constant(c10::IValue());
  }

  [[nodiscard]] ArgumentPush from_value(ValueIndex value) const {
    const ProgramValue& given = graph_.values[to_index(value.index)];
    const int slot = slot_(value.index);
    const bool is_tensor = given.kind == ProgramValue::Kind::Tensor;
    switch (type_->kind()) {
      case Kind::TensorType:
        return {is_tensor ? ArgumentPush::Form::Slot : ArgumentPush::Form::Wrapped, {}, {{slot, 0}}};
      case Kind::FloatType:
        if (is_tensor) break;
        return {ArgumentPush::Form::Float, {}, {{slot, 0}}};
      case Kind::IntType:
      case Kind::SymIntType:
        if (given.kind != ProgramValue::Kind::Int) break;
        return {ArgumentPush::Form::Slot, {}, {{slot, 0}}};
      case Kind::BoolType:
        if (given.kind != ProgramValue::Kind::Bool) break;
        return {ArgumentPush::Form::Slot, {}, {{slot, 0}}};
      case Kind::NumberType:
        if (is_tensor) break;
        return {ArgumentPush::Form::Slot, {}, {{slot, 0}}};
      case Kind::ListType:
        if (given.kind == ProgramValue::Kind::Int) return ints({value});
        if (is_tensor && element_->kind() == Kind::TensorType) return tensors({value});
        break;
      default:
        break;
    }
    refuse((is_tensor ? "the tensor \"" : "the number \"") + given.name + "\"");
  }

  [[nodiscard]] ArgumentPush tensors(const std::vector<std::optional<ValueIndex>>& values) const {
    if (!element_) refuse("a list of tensors");
    const bool optional = element_->kind() == Kind::OptionalType;
    ArgumentPush out{optional ? ArgumentPush::Form::OptionalTensors : ArgumentPush::Form::Tensors, {}, {}};
    if (!optional && element_->kind() != Kind::TensorType) {
      if (!values.empty()) refuse("a list of tensors");
      return empty_list();
    }
    for (const std::optional<ValueIndex>& value : values) {
      if (!value && !optional) refuse("a list that contains None");
      if (value && graph_.values[to_index(value->index)].kind != ProgramValue::Kind::Tensor)
        refuse("a list that contains a number");
      out.parts.emplace_back(value ? slot_(value->index) : -1, 0);
    }
    return out;
  }

  [[nodiscard]] ArgumentPush number(const c10::Scalar& value) const {
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
        // torch.export traces with cuDNN turned off and records that.
        if (wanted_.name() == "cudnn_enabled") return {ArgumentPush::Form::OnGpu, {}, {}};
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

  [[nodiscard]] ArgumentPush empty_list() const { return constant(c10::IValue(c10::impl::GenericList(element_))); }

  [[nodiscard]] ArgumentPush ints(const std::vector<IntItem>& values) const {
    const auto list = [&] {
      ArgumentPush out{ArgumentPush::Form::Ints, {}, {}};
      bool fixed = true;
      c10::List<std::int64_t> numbers;
      for (const IntItem& item : values) {
        if (const auto* const value = std::get_if<ValueIndex>(&item)) {
          if (graph_.values[to_index(value->index)].kind != ProgramValue::Kind::Int)
            refuse("a list with a value that is not an integer");
          out.parts.emplace_back(slot_(value->index), 0);
          fixed = false;
        } else {
          out.parts.emplace_back(-1, std::get<std::int64_t>(item));
          numbers.push_back(std::get<std::int64_t>(item));
        }
      }
      return fixed ? constant(std::move(numbers)) : out;
    };
    if (type_->kind() == Kind::TensorType && values.size() == 1) refuse("a list of integers");
    if (!element_) refuse("a list of integers");
    if (is_int(element_->kind())) return list();
    std::vector<c10::Scalar> numbers;
    for (const IntItem& item : values) {
      if (!std::holds_alternative<std::int64_t>(item)) refuse("a list of integers that depend on the batch size");
      numbers.emplace_back(std::get<std::int64_t>(item));
    }
    if (values.empty() && element_->kind() != Kind::FloatType && element_->kind() != Kind::NumberType) {
      if (element_->kind() == Kind::TensorType) return {ArgumentPush::Form::Tensors, {}, {}};
      if (element_->kind() == Kind::OptionalType) return {ArgumentPush::Form::OptionalTensors, {}, {}};
      return empty_list();
    }
    return scalars(numbers, "a list of integers");
  }

  [[nodiscard]] ArgumentPush floats(const std::vector<double>& values) const {
    if (!element_) refuse("a list of numbers");
    std::vector<c10::Scalar> numbers(values.begin(), values.end());
    return scalars(numbers, "a list of numbers");
  }

  [[nodiscard]] ArgumentPush scalars(const std::vector<c10::Scalar>& numbers, const std::string& found) const {
    if (element_->kind() == Kind::FloatType) {
      c10::List<double> out;
      for (const c10::Scalar& number : numbers) out.push_back(number.toDouble());
      return constant(std::move(out));
    }
    if (element_->kind() == Kind::NumberType) {
      c10::impl::GenericList out(c10::NumberType::get());
      for (const c10::Scalar& number : numbers) out.push_back(c10::IValue(number));
      return constant(out);
    }
    refuse(found);
  }

  [[nodiscard]] ArgumentPush bools(const std::vector<bool>& values) const {
    if (!element_ || element_->kind() != Kind::BoolType) refuse("a list of booleans");
    c10::List<bool> out;
    for (const bool value : values) out.push_back(value);
    return constant(std::move(out));
  }

  [[nodiscard]] ArgumentPush word(const std::string& text) const {
    if (type_->kind() != Kind::StringType) refuse("\"" + text + "\"");
    return constant(text);
  }

  [[nodiscard]] ArgumentPush words(const std::vector<std::string>& values) const {
    if (!element_ || element_->kind() != Kind::StringType) refuse("a list of strings");
    c10::List<std::string> out;
    for (const std::string& value : values) out.push_back(value);
    return constant(std::move(out));
  }

  [[nodiscard]] ArgumentPush code(std::int64_t value) const {
    if (!is_int(type_->kind())) refuse("a type, layout or memory format");
    return constant(value);
  }

  [[nodiscard]] ArgumentPush device() const {
    if (type_->kind() != Kind::DeviceObjType) refuse("a device");
    return {ArgumentPush::Form::Device, {}, {}};
  }

  const ProgramGraph& graph_;
  const c10::Argument& wanted_;
  std::string place_;
  const std::function<int(int)>& slot_;
  c10::TypePtr type_;
  c10::TypePtr element_;
  bool optional_ = false;
};

}  // namespace

ArgumentPush argument_push(const ProgramGraph& graph, const c10::Argument& wanted, const ArgumentValue& given,
                           const std::string& place, const std::function<int(int)>& slot) {
  return Coercion(graph, wanted, place, slot)(given);
}

void push(const ArgumentPush& what, Frame& frame) {
  auto& stack = frame.stack;
  switch (what.form) {
    case ArgumentPush::Form::Constant:
      stack.push_back(what.constant);
      return;
    case ArgumentPush::Form::Slot:
      stack.push_back(frame.slots[to_index(what.parts.front().first)]);
      return;
    case ArgumentPush::Form::Float:
      stack.emplace_back(scalar_of(frame.slots[to_index(what.parts.front().first)]).toDouble());
      return;
    case ArgumentPush::Form::Wrapped:
      stack.emplace_back(wrapped(scalar_of(frame.slots[to_index(what.parts.front().first)])));
      return;
    case ArgumentPush::Form::Tensors: {
      c10::List<at::Tensor> list;
      list.reserve(what.parts.size());
      for (const auto& [slot, number] : what.parts) list.push_back(frame.slots[to_index(slot)].toTensor());
      stack.emplace_back(std::move(list));
      return;
    }
    case ArgumentPush::Form::OptionalTensors: {
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(what.parts.size());
      for (const auto& [slot, number] : what.parts) {
        if (slot < 0) {
          list.push_back(std::nullopt);
        } else {
          list.push_back(frame.slots[to_index(slot)].toTensor());
        }
      }
      stack.emplace_back(std::move(list));
      return;
    }
    case ArgumentPush::Form::Ints: {
      c10::List<std::int64_t> list;
      list.reserve(what.parts.size());
      for (const auto& [slot, number] : what.parts)
        list.push_back(slot < 0 ? number : scalar_of(frame.slots[to_index(slot)]).toLong());
      stack.emplace_back(std::move(list));
      return;
    }
    case ArgumentPush::Form::Device:
      stack.emplace_back(frame.device);
      return;
    case ArgumentPush::Form::OnGpu:
      stack.emplace_back(frame.device.is_cuda());
      return;
  }
}

}  // namespace stagecraft::intake
