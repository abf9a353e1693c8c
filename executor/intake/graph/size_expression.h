#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace stagecraft::intake {

/// An integer that may depend on the batch size: a tree of operations over numbers and symbols.
struct SizeExpression {
  enum class Kind { Number, Symbol, Add, Multiply, FloorDivide, Modulo, Minimum, Maximum, Power };
  Kind kind = Kind::Number;
  std::int64_t number = 0;                 ///< of Number
  std::string symbol = {};                 ///< of Symbol
  std::vector<SizeExpression> parts = {};  ///< of the others; two of FloorDivide, Modulo and Power

  SizeExpression() = default;
  SizeExpression(std::int64_t value) : number(value) {}  // implicit: a number is an expression
  friend bool operator==(const SizeExpression&, const SizeExpression&) = default;
};

/// Values of symbols by name.
using Symbols = std::map<std::string, std::int64_t>;

/// The value under `symbols`; division and remainder round as in Python. Throws std::invalid_argument naming a symbol
/// without a value, an overflow of 64 bits, a division by zero or a negative power.
[[nodiscard]] std::int64_t evaluate(const SizeExpression& expression, const Symbols& symbols);

/// Its symbols.
[[nodiscard]] std::set<std::string> symbols_of(const SizeExpression& expression);

/// The number, if it depends on no symbol.
[[nodiscard]] std::optional<std::int64_t> constant_value(const SizeExpression& expression);

/// The value of the only symbol of `expression` for which it is `value`, if it is a symbol or a positive multiple of
/// one; nothing otherwise.
[[nodiscard]] std::optional<std::int64_t> solve(const SizeExpression& expression, std::int64_t value);

/// For people: "8*s77".
[[nodiscard]] std::string to_string(const SizeExpression& expression);

}  // namespace stagecraft::intake
