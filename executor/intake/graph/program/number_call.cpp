#include "executor/intake/graph/program/number_call.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <variant>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/intake/graph/program/operator_call.h"

namespace stagecraft::intake {
namespace {

using Numbers = std::vector<c10::IValue>;
using NumberFunction = c10::IValue (*)(const Numbers&);

struct Entry {
  std::size_t arguments;
  NumberFunction call;
};

bool whole(const Numbers& x) {
  for (const c10::IValue& value : x) {
    if (!value.isInt() && !value.isBool()) return false;
  }
  return true;
}
std::int64_t integer(const c10::IValue& x) { return x.toScalar().toLong(); }
double real(const c10::IValue& x) { return x.toScalar().toDouble(); }

std::int64_t sum(std::int64_t a, std::int64_t b) {
  if (std::int64_t out = 0; !__builtin_add_overflow(a, b, &out)) return out;
  throw std::invalid_argument("a sum too large for a 64-bit integer");
}

std::int64_t difference(std::int64_t a, std::int64_t b) {
  if (std::int64_t out = 0; !__builtin_sub_overflow(a, b, &out)) return out;
  throw std::invalid_argument("a difference too large for a 64-bit integer");
}

std::int64_t product(std::int64_t a, std::int64_t b) {
  if (std::int64_t out = 0; !__builtin_mul_overflow(a, b, &out)) return out;
  throw std::invalid_argument("a product too large for a 64-bit integer");
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) throw std::invalid_argument("division by zero");
  if (b == -1) return difference(0, a);  // the processor traps where the quotient has no 64 bits
  const std::int64_t quotient = a / b;
  return quotient - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

std::int64_t floor_modulo(std::int64_t a, std::int64_t b) {
  if (b == 0) throw std::invalid_argument("division by zero");
  if (b == -1) return 0;  // as above
  const std::int64_t remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

std::int64_t integer_of(double x) {
  if (!(std::abs(x) < 9.2e18)) throw std::invalid_argument("a number too large for a 64-bit integer");
  return static_cast<std::int64_t>(x);
}

c10::IValue power(const Numbers& x) {
  if (!whole(x) || integer(x[1]) < 0) return std::pow(real(x[0]), real(x[1]));
  const std::int64_t base = integer(x[0]);
  std::int64_t left = integer(x[1]);
  if (base >= -1 && base <= 1) left = std::min<std::int64_t>(left, 2 - left % 2);  // their powers repeat
  std::int64_t out = 1;
  for (; left > 0; --left) out = product(out, base);
  return out;
}

/// Integers by one function, others by another.
template <typename Int, typename Real>
c10::IValue either(const Numbers& x, Int&& of_whole, Real&& of_real) {
  if (whole(x)) return of_whole(integer(x[0]), integer(x.back()));
  return of_real(real(x[0]), real(x.back()));
}

const std::map<std::string, Entry>& table() {
  using N = const Numbers&;
  static const std::map<std::string, Entry> entries{
      {"_operator.add", {2, [](N x) { return either(x, sum, std::plus<>()); }}},
      {"_operator.sub", {2, [](N x) { return either(x, difference, std::minus<>()); }}},
      {"_operator.mul", {2, [](N x) { return either(x, product, std::multiplies<>()); }}},
      {"_operator.floordiv",
       {2, [](N x) { return either(x, floor_divide, [](double a, double b) { return std::floor(a / b); }); }}},
      {"_operator.truediv", {2, [](N x) -> c10::IValue { return real(x[0]) / real(x[1]); }}},
      {"_operator.mod",
       {2, [](N x) { return either(x, floor_modulo, [](double a, double b) { return a - b * std::floor(a / b); }); }}},
      {"_operator.pow", {2, power}},
      {"_operator.neg",
       {1,
        [](N x) {
          return either(x, [](auto a, auto) { return difference(0, a); }, [](double a, double) { return -a; });
        }}},
      {"_operator.pos", {1, [](N x) { return x[0]; }}},
      {"_operator.eq", {2, [](N x) -> c10::IValue { return real(x[0]) == real(x[1]); }}},
      {"_operator.ne", {2, [](N x) -> c10::IValue { return real(x[0]) != real(x[1]); }}},
      {"_operator.lt", {2, [](N x) -> c10::IValue { return real(x[0]) < real(x[1]); }}},
      {"_operator.le", {2, [](N x) -> c10::IValue { return real(x[0]) <= real(x[1]); }}},
      {"_operator.gt", {2, [](N x) -> c10::IValue { return real(x[0]) > real(x[1]); }}},
      {"_operator.ge", {2, [](N x) -> c10::IValue { return real(x[0]) >= real(x[1]); }}},
      {"_operator.and_", {2, [](N x) -> c10::IValue { return x[0].toBool() && x[1].toBool(); }}},
      {"_operator.or_", {2, [](N x) -> c10::IValue { return x[0].toBool() || x[1].toBool(); }}},
      {"_operator.xor", {2, [](N x) -> c10::IValue { return x[0].toBool() != x[1].toBool(); }}},
      {"math.trunc", {1, [](N x) -> c10::IValue { return integer_of(std::trunc(real(x[0]))); }}},
      {"math.floor", {1, [](N x) -> c10::IValue { return integer_of(std::floor(real(x[0]))); }}},
      {"math.ceil", {1, [](N x) -> c10::IValue { return integer_of(std::ceil(real(x[0]))); }}},
      {"torch.sym_int", {1, [](N x) -> c10::IValue { return integer_of(std::trunc(real(x[0]))); }}},
      {"torch.sym_float", {1, [](N x) -> c10::IValue { return real(x[0]); }}},
      {"torch.sym_not", {1, [](N x) -> c10::IValue { return !x[0].toBool(); }}},
      {"torch.sym_ite", {3, [](N x) { return x[0].toBool() ? x[1] : x[2]; }}},
      {"torch.sym_max", {2, [](N x) { return real(x[0]) < real(x[1]) ? x[1] : x[0]; }}},
      {"torch.sym_min", {2, [](N x) { return real(x[1]) < real(x[0]) ? x[1] : x[0]; }}},
      {"torch._sym_sqrt", {1, [](N x) -> c10::IValue { return std::sqrt(real(x[0])); }}},
  };
  return entries;
}

bool is_size(const std::string& target) {
  return target == "torch.ops.aten.sym_size.int" || target == "torch.ops.aten.size.int" ||
         target == "torch.ops.aten.sym_numel.default" || target == "torch.ops.aten.sym_stride.int";
}

/// A literal number, or the slot of one.
struct Operand {
  c10::IValue value = {};
  int slot = -1;
};

NodeCall size_call(const ProgramGraph& graph, const ProgramNode& node, const std::string& place,
                   const std::function<int(int)>& slot) {
  const auto* const tensor = node.arguments.empty() ? nullptr : std::get_if<ValueIndex>(&node.arguments[0].value);
  const auto* const axis = node.arguments.size() < 2 ? nullptr : std::get_if<std::int64_t>(&node.arguments[1].value);
  const bool count = node.target == "torch.ops.aten.sym_numel.default";
  if (!tensor || graph.values[to_index(tensor->index)].kind != ProgramValue::Kind::Tensor || (!axis && !count))
    throw FormatError(ErrorKind::UnsupportedModel, place + ": expected a tensor" + (count ? "" : " and an axis"));
  const int from = slot(tensor->index);
  const int to = slot(node.results[0].values[0].index);
  if (count) return [=](Frame& frame) { frame.slots[to_index(to)] = frame.slots[to_index(from)].toTensor().numel(); };
  const bool stride = node.target == "torch.ops.aten.sym_stride.int";
  return [=, at = *axis](Frame& frame) {
    const at::Tensor& value = frame.slots[to_index(from)].toTensor();
    frame.slots[to_index(to)] = stride ? value.stride(at) : value.size(at);
  };
}

}  // namespace

bool computes_numbers(const ProgramNode& node) {
  return is_size(node.target) || node.target.starts_with("_operator.") || node.target.starts_with("math.") ||
         node.target.starts_with("torch.sym_") || node.target.starts_with("torch._sym_");
}

NodeCall number_call(const ProgramGraph& graph, const ProgramNode& node, const std::string& place,
                     const std::function<int(int)>& slot) {
  if (node.results.size() != 1 || node.results[0].values.size() != 1)
    throw FormatError(ErrorKind::UnsupportedModel, place + ": expected one number as result");
  if (is_size(node.target)) return size_call(graph, node, place, slot);
  const auto it = table().find(node.target);
  if (it == table().end()) {
    std::vector<std::string> known;
    for (const auto& [name, entry] : table()) known.push_back(name);
    throw FormatError(ErrorKind::UnsupportedModel,
                      place + ": " + unknown_name("operation on numbers", node.target, known));
  }
  std::vector<Operand> operands;
  for (const ProgramArgument& argument : node.arguments) {
    if (const auto* const value = std::get_if<ValueIndex>(&argument.value)) {
      if (graph.values[to_index(value->index)].kind == ProgramValue::Kind::Tensor)
        throw FormatError(ErrorKind::UnsupportedModel, place + ": found a tensor, expected a number");
      operands.push_back({{}, slot(value->index)});
    } else if (const auto* const integer_value = std::get_if<std::int64_t>(&argument.value)) {
      operands.push_back({*integer_value, -1});
    } else if (const auto* const real_value = std::get_if<double>(&argument.value)) {
      operands.push_back({*real_value, -1});
    } else if (const auto* const truth = std::get_if<bool>(&argument.value)) {
      operands.push_back({*truth, -1});
    } else {
      throw FormatError(ErrorKind::UnsupportedModel, place + ": argument \"" + argument.name + "\": expected a number");
    }
  }
  if (operands.size() != it->second.arguments) {
    throw FormatError(ErrorKind::UnsupportedModel, place + ": found " + std::to_string(operands.size()) +
                                                       " arguments, expected " + std::to_string(it->second.arguments));
  }
  const int to = slot(node.results[0].values[0].index);
  return [call = it->second.call, operands = std::move(operands), to](Frame& frame) {
    Numbers numbers;
    for (const Operand& operand : operands)
      numbers.push_back(operand.slot < 0 ? operand.value : frame.slots[to_index(operand.slot)]);
    frame.slots[to_index(to)] = call(numbers);
  };
}

}  // namespace stagecraft::intake
