#include "executor/intake/export/stage_numbers.h"

#include <stdexcept>

namespace stagecraft::intake {
namespace {

using Kind = SizeExpression::Kind;

/// As torch.export writes it.
std::string sympy_text(const SizeExpression& expression) {
  const auto call = [&](const char* function) {
    std::string out;
    for (const SizeExpression& part : expression.parts) out += (out.empty() ? "" : ", ") + sympy_text(part);
    return function + ("(" + out + ")");
  };
  switch (expression.kind) {
    case Kind::Number:
      return "Integer(" + std::to_string(expression.number) + ")";
    case Kind::Symbol:
      return "Symbol('" + expression.symbol + "', positive=True, integer=True)";
    case Kind::Add:
      return call("Add");
    case Kind::Multiply:
      return call("Mul");
    case Kind::FloorDivide:
      return call("FloorDiv");
    case Kind::Modulo:
      return call("Mod");
    case Kind::Minimum:
      return call("Min");
    case Kind::Maximum:
      return call("Max");
    case Kind::Power:
      return call("Pow");
  }
  throw std::logic_error("unknown kind of expression");
}

const char* operator_of(Kind kind) {
  switch (kind) {
    case Kind::Add:
      return "_operator.add";
    case Kind::Multiply:
      return "_operator.mul";
    case Kind::FloorDivide:
      return "_operator.floordiv";
    case Kind::Modulo:
      return "_operator.mod";
    case Kind::Minimum:
      return "torch.sym_min";
    case Kind::Maximum:
      return "torch.sym_max";
    case Kind::Power:
      return "_operator.pow";
    default:
      throw std::logic_error("no operation");
  }
}

class NumberMaker {
 public:
  NumberMaker(const WantedNumber& wanted, const std::function<std::string(const std::string&)>& fresh)
      : wanted_(wanted), fresh_(fresh) {}

  NumberNodes run() {
    const bool direct = wanted_.extent == wanted_.expression;
    const std::string size = direct ? wanted_.number : named(wanted_.number + "_size", wanted_.extent);
    add("torch.ops.aten.sym_size.int", size,
        {{"self", {{"as_tensor", {{"name", wanted_.tensor}}}}}, {"dim", {{"as_int", wanted_.axis}}}});
    if (direct) return std::move(out_);

    batch_ = size;
    if (wanted_.extent.kind != Kind::Symbol) {
      const SizeExpression symbol = symbol_of(wanted_.extent);
      batch_ = wanted_.expression == symbol ? wanted_.number : named(wanted_.number + "_batch", symbol);
      add("_operator.floordiv", batch_, {{"a", name(size)}, {"b", {{"as_int", factor()}}}});
    }
    if (wanted_.expression.kind != Kind::Symbol) (void)compute(wanted_.expression, wanted_.number);
    return std::move(out_);
  }

 private:
  static format::Json name(const std::string& value) { return {{"as_sym_int", {{"as_name", value}}}}; }

  static SizeExpression symbol_of(const SizeExpression& expression) {
    SizeExpression out;
    out.kind = Kind::Symbol;
    out.symbol = *symbols_of(expression).begin();
    return out;
  }
  [[nodiscard]] std::int64_t factor() const {
    return evaluate(wanted_.extent, {{symbol_of(wanted_.extent).symbol, 1}});
  }

  std::string named(const std::string& wish, const SizeExpression& expression) {
    std::string out = fresh_(wish);
    const Symbols symbols{{symbol_of(wanted_.extent).symbol, wanted_.hint / factor()}};
    out_.entries.emplace_back(
        out,
        format::Json{{"as_expr",
                      {{"expr_str", sympy_text(expression)}, {"hint", {{"as_int", evaluate(expression, symbols)}}}}}});
    return out;
  }

  void add(const std::string& target, const std::string& value,
           const std::vector<std::pair<std::string, format::Json>>& arguments) {
    out_.nodes.push_back(new_node(target, value, arguments, name(value)));
  }

  /// An argument for the expression; `result` names it, empty for a new name.
  format::Json compute(const SizeExpression& expression, const std::string& result) {
    if (expression.kind == Kind::Number) return {{"as_int", expression.number}};
    if (expression.kind == Kind::Symbol) return name(batch_);
    format::Json left = compute(expression.parts.at(0), "");
    SizeExpression so_far;
    so_far.kind = expression.kind;
    so_far.parts = {expression.parts[0]};
    for (std::size_t i = 1; i < expression.parts.size(); ++i) {
      so_far.parts.push_back(expression.parts[i]);
      const format::Json right = compute(expression.parts[i], "");
      const bool last = i + 1 == expression.parts.size();
      const std::string value = last && !result.empty() ? result : named(wanted_.number + "_part", so_far);
      add(operator_of(expression.kind), value, {{"a", left}, {"b", right}});
      left = name(value);
    }
    return left;
  }

  const WantedNumber& wanted_;
  const std::function<std::string(const std::string&)>& fresh_;
  std::string batch_;
  NumberNodes out_;
};

}  // namespace

format::Json new_node(const std::string& target, const std::string& name,
                      const std::vector<std::pair<std::string, format::Json>>& arguments, const format::Json& result) {
  constexpr int kPositional = 1;
  format::Json inputs = format::Json::array();
  for (const auto& [argument, value] : arguments)
    inputs.push_back({{"name", argument}, {"arg", value}, {"kind", kPositional}});
  return {{"target", target},
          {"inputs", inputs},
          {"outputs", format::Json::array({result})},
          {"metadata", format::Json::object()},
          {"is_hop_single_tensor_return", nullptr},
          {"name", name}};
}

NumberNodes number_nodes(const WantedNumber& wanted, const std::function<std::string(const std::string&)>& fresh) {
  return NumberMaker(wanted, fresh).run();
}

}  // namespace stagecraft::intake
