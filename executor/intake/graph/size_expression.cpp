#include "executor/intake/graph/size_expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>

namespace stagecraft::intake {
namespace {

using Kind = SizeExpression::Kind;

[[noreturn]] void overflows() { throw std::invalid_argument("a size exceeds 64 bits"); }

std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) overflows();
  return out;
}

std::int64_t sum(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) overflows();
  return out;
}

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  if (b == 0) throw std::invalid_argument("a size is divided by zero");
  if (b == -1) return product(a, -1);
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

std::int64_t floor_remainder(std::int64_t a, std::int64_t b) {
  if (b == 0) throw std::invalid_argument("a size is divided by zero");
  if (b == -1) return 0;
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

std::int64_t power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) throw std::invalid_argument(fmt::format("a size has the power {}, must be at least 0", exponent));
  std::int64_t out = 1;
  while (exponent > 0) {
    if (exponent % 2 != 0) out = product(out, base);
    exponent /= 2;
    if (exponent > 0) base = product(base, base);
  }
  return out;
}

void add_symbols(const SizeExpression& expression, std::set<std::string>& out) {
  if (expression.kind == Kind::Symbol) out.insert(expression.symbol);
  for (const SizeExpression& part : expression.parts) add_symbols(part, out);
}

bool is_constant(const SizeExpression& expression) {
  return expression.kind != Kind::Symbol && std::ranges::all_of(expression.parts, is_constant);
}

std::string joined(const SizeExpression& expression, std::string_view between) {
  std::string out;
  for (const SizeExpression& part : expression.parts) {
    if (!out.empty()) out += between;
    const bool simple = part.parts.empty() || part.kind == Kind::Minimum || part.kind == Kind::Maximum;
    out += simple ? to_string(part) : "(" + to_string(part) + ")";
  }
  return out;
}

std::string listed(const SizeExpression& expression) {
  std::string out;
  for (const SizeExpression& part : expression.parts) out += (out.empty() ? "" : ", ") + to_string(part);
  return out;
}

}  // namespace

std::int64_t evaluate(const SizeExpression& expression, const Symbols& symbols) {
  const auto part = [&](std::size_t i) { return evaluate(expression.parts.at(i), symbols); };
  const auto fold = [&](auto&& combine) {
    std::int64_t out = part(0);
    for (std::size_t i = 1; i < expression.parts.size(); ++i) out = combine(out, part(i));
    return out;
  };
  switch (expression.kind) {
    case Kind::Number:
      return expression.number;
    case Kind::Symbol: {
      const auto found = symbols.find(expression.symbol);
      if (found == symbols.end())
        throw std::invalid_argument("symbol \"" + expression.symbol + "\" of a size has no value");
      return found->second;
    }
    case Kind::Add:
      return fold(sum);
    case Kind::Multiply:
      return fold(product);
    case Kind::FloorDivide:
      return floor_quotient(part(0), part(1));
    case Kind::Modulo:
      return floor_remainder(part(0), part(1));
    case Kind::Minimum:
      return fold([](std::int64_t a, std::int64_t b) { return std::min(a, b); });
    case Kind::Maximum:
      return fold([](std::int64_t a, std::int64_t b) { return std::max(a, b); });
    case Kind::Power:
      return power(part(0), part(1));
  }
  throw std::logic_error("unknown kind of size");
}

std::set<std::string> symbols_of(const SizeExpression& expression) {
  std::set<std::string> out;
  add_symbols(expression, out);
  return out;
}

std::optional<std::int64_t> constant_value(const SizeExpression& expression) {
  if (expression.kind == Kind::Number) return expression.number;
  if (!is_constant(expression)) return std::nullopt;
  try {
    return evaluate(expression, {});
  } catch (const std::invalid_argument&) { return std::nullopt; }
}

std::optional<std::int64_t> solve(const SizeExpression& expression, std::int64_t value) {
  if (expression.kind == Kind::Symbol) return value;
  if (expression.kind != Kind::Multiply) return std::nullopt;
  const SizeExpression* unknown = nullptr;
  std::int64_t factor = 1;
  for (const SizeExpression& part : expression.parts) {
    if (const auto number = constant_value(part)) {
      if (__builtin_mul_overflow(factor, *number, &factor)) return std::nullopt;
    } else if (unknown == nullptr) {
      unknown = &part;
    } else {
      return std::nullopt;
    }
  }
  if (unknown == nullptr || factor <= 0 || value % factor != 0) return std::nullopt;
  return solve(*unknown, value / factor);
}

std::string to_string(const SizeExpression& expression) {
  switch (expression.kind) {
    case Kind::Number:
      return std::to_string(expression.number);
    case Kind::Symbol:
      return expression.symbol;
    case Kind::Add:
      return joined(expression, " + ");
    case Kind::Multiply:
      return joined(expression, "*");
    case Kind::FloorDivide:
      return joined(expression, "//");
    case Kind::Modulo:
      return joined(expression, " % ");
    case Kind::Minimum:
      return "min(" + listed(expression) + ")";
    case Kind::Maximum:
      return "max(" + listed(expression) + ")";
    case Kind::Power:
      return joined(expression, "**");
  }
  throw std::logic_error("unknown kind of size");
}

}  // namespace stagecraft::intake
