#include "executor/intake/graph/size_expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

using Kind = SizeExpression::Kind;

constexpr int kDeepest = 64;
constexpr int kMostParts = 10000;
constexpr std::size_t kMostArguments = std::numeric_limits<std::size_t>::max();

struct SizeFunction {
  std::string_view name;
  Kind kind;
  std::size_t least;
  std::size_t most;
};
constexpr std::array kFunctions{
    SizeFunction{"Add", Kind::Add, 1, kMostArguments},     SizeFunction{"Mul", Kind::Multiply, 1, kMostArguments},
    SizeFunction{"FloorDiv", Kind::FloorDivide, 2, 2},     SizeFunction{"Mod", Kind::Modulo, 2, 2},
    SizeFunction{"PythonMod", Kind::Modulo, 2, 2},         SizeFunction{"Min", Kind::Minimum, 1, kMostArguments},
    SizeFunction{"Max", Kind::Maximum, 1, kMostArguments}, SizeFunction{"Pow", Kind::Power, 2, 2},
};
constexpr std::array kConstants{
    std::pair<std::string_view, std::int64_t>{"Zero", 0},
    std::pair<std::string_view, std::int64_t>{"One", 1},
    std::pair<std::string_view, std::int64_t>{"NegativeOne", -1},
};

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view text) : text_(text) {}

  SizeExpression whole() {
    SizeExpression out = expression(1);
    skip_spaces();
    if (at_ != text_.size()) fail("expected its end");
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    constexpr std::size_t kShown = 80;
    const std::string shown = text_.size() > kShown ? std::string(text_.substr(0, kShown)) + "..." : std::string(text_);
    throw std::invalid_argument(fmt::format("size \"{}\": at character {}: {}", shown, at_ + 1, what));
  }
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(fmt::format("expected '{}'", c));
  }
  std::string_view word() {
    skip_spaces();
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  SizeExpression expression(int depth) {
    if (depth > kDeepest) fail(fmt::format("nested deeper than {} levels", kDeepest));
    if (++parts_ > kMostParts) fail(fmt::format("has more than {} parts", kMostParts));
    skip_spaces();
    const std::size_t begin = at_;
    const std::string_view name = word();
    if (name == "Integer") return integer();
    if (name == "Symbol") return symbol();
    const auto* const constant = std::ranges::find(kConstants, name, &std::pair<std::string_view, std::int64_t>::first);
    if (constant != kConstants.end()) return {constant->second};
    const auto* const function = std::ranges::find(kFunctions, name, &SizeFunction::name);
    if (function != kFunctions.end()) return call(*function, depth);
    at_ = begin;
    std::string known = "Integer, Symbol";
    for (const SizeFunction& each : kFunctions) known += fmt::format(", {}", each.name);
    for (const auto& each : kConstants) known += fmt::format(", {}", each.first);
    fail("unknown function, known are " + known);
  }

  SizeExpression integer() {
    expect('(');
    skip_spaces();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) fail("a number beyond 64 bits");
    if (error != std::errc()) fail("expected an integer");
    at_ = to_index(end - text_.data());
    expect(')');
    return {value};
  }

  // Symbol('s77', positive=True, integer=True)
  SizeExpression symbol() {
    expect('(');
    expect('\'');
    SizeExpression out;
    out.kind = Kind::Symbol;
    out.symbol = word();
    if (out.symbol.empty()) fail("expected the name of a symbol");
    expect('\'');
    while (take(',')) {
      if (word().empty()) fail("expected an assumption about the symbol, such as positive=True");
      expect('=');
      const std::string_view value = word();
      if (value != "True" && value != "False") fail("expected True or False");
    }
    expect(')');
    return out;
  }

  SizeExpression call(const SizeFunction& function, int depth) {
    expect('(');
    SizeExpression out;
    out.kind = function.kind;
    do { out.parts.push_back(expression(depth + 1)); } while (take(','));
    expect(')');
    if (out.parts.size() < function.least || out.parts.size() > function.most) {
      fail(fmt::format("found {} parts of {}, expected {}", out.parts.size(), function.name, function.least));
    }
    return out;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int parts_ = 0;
};

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

SizeExpression parse_size_expression(std::string_view text) { return ExpressionParser(text).whole(); }

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
