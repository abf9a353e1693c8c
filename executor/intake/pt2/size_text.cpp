#include "executor/intake/pt2/size_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
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
    for (const SizeFunction& entry : kFunctions) known += fmt::format(", {}", entry.name);
    for (const auto& entry : kConstants) known += fmt::format(", {}", entry.first);
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

}  // namespace

SizeExpression parse_size_expression(std::string_view text) { return ExpressionParser(text).whole(); }

}  // namespace stagecraft::intake
