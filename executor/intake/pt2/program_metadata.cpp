#include "executor/intake/pt2/program_metadata.h"

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

namespace {

constexpr std::size_t kMostDimensions = 64;

/// The entry for the code at `at` in a table of codes; refuses what is not in it.
template <class T, std::size_t n>
T decode(const format::Cursor& at, const std::array<std::pair<std::int64_t, T>, n>& table, std::string_view wanted) {
  const std::int64_t code = read_int(at);
  for (const auto& [known, value] : table) {
    if (known == code) return value;
  }
  std::string codes;
  for (const auto& [known, value] : table) codes += (codes.empty() ? "" : ", ") + std::to_string(known);
  at.fail(fmt::format("found code {}, expected {}: {}", code, wanted, codes));
}

std::vector<SizeExpression> read_sizes(const format::Cursor& at, std::string_view what) {
  std::vector<SizeExpression> out;
  const std::size_t n = at.elements();
  if (n > kMostDimensions) at.fail(fmt::format("found {} dimensions, expected at most {}", n, kMostDimensions));
  out.reserve(n);
  for (std::size_t i = 0; i < n; ++i) {
    out.push_back(read_size(at.at(i)));
    if (out.back().kind == SizeExpression::Kind::Number && out.back().number < 0)
      at.at(i).fail(fmt::format("found a {} of {}, must be at least 0", what, out.back().number));
  }
  return out;
}

}  // namespace

Choice read_choice(const format::Cursor& at) {
  if (!at.value().is_object() || at.value().size() != 1) at.fail_type("an object with exactly one key");
  return {at.value().begin().key(), at.inside(*at.value().begin())};
}

c10::ScalarType read_dtype(const format::Cursor& at) {
  using Type = c10::ScalarType;
  static constexpr std::array<std::pair<std::int64_t, Type>, 18> kCodes{{
      {1, Type::Byte},
      {2, Type::Char},
      {3, Type::Short},
      {4, Type::Int},
      {5, Type::Long},
      {6, Type::Half},
      {7, Type::Float},
      {8, Type::Double},
      {9, Type::ComplexHalf},
      {10, Type::ComplexFloat},
      {11, Type::ComplexDouble},
      {12, Type::Bool},
      {13, Type::BFloat16},
      {28, Type::UInt16},
      {29, Type::Float8_e4m3fn},
      {30, Type::Float8_e5m2},
      {31, Type::Float8_e4m3fnuz},
      {32, Type::Float8_e5m2fnuz},
  }};
  return decode(at, kCodes, "a type of values");
}

c10::Layout read_layout(const format::Cursor& at) {
  static constexpr std::array<std::pair<std::int64_t, c10::Layout>, 1> kCodes{{{7, c10::Layout::Strided}}};
  return decode(at, kCodes, "a strided layout");
}

c10::MemoryFormat read_memory_format(const format::Cursor& at) {
  using Format = c10::MemoryFormat;
  static constexpr std::array<std::pair<std::int64_t, Format>, 4> kCodes{
      {{1, Format::Contiguous}, {2, Format::ChannelsLast}, {3, Format::ChannelsLast3d}, {4, Format::Preserve}}};
  return decode(at, kCodes, "a memory format");
}

c10::Device read_device(const format::Cursor& at) {
  format::Fields fields(at);
  const format::Cursor type = fields.required("type");
  const auto index = fields.optional("index");
  fields.done();
  static const std::vector<std::pair<std::string, c10::DeviceType>> known{
      {"cpu", c10::kCPU}, {"cuda", c10::kCUDA}, {"meta", c10::kMeta}};
  const std::string name = type.text();
  for (const auto& [text, value] : known) {
    if (text == name) return {value, static_cast<c10::DeviceIndex>(index ? index->integer(0, 127) : -1)};
  }
  type.fail(unknown_name("device", name, {"cpu", "cuda", "meta"}));
}

double read_float(const format::Cursor& at) {
  if (at.value().is_string()) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const auto& text = at.value().get_ref<const std::string&>();
    if (text == "Infinity") return kInfinity;
    if (text == "-Infinity") return -kInfinity;
    if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  }
  if (!at.value().is_number()) at.fail_type("a number, \"Infinity\", \"-Infinity\" or \"NaN\"");
  return at.number();
}

std::int64_t read_int(const format::Cursor& at) {
  if (!at.value().is_number_integer()) at.fail_type("an integer");
  return at.integer(std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max());
}

SizeExpression read_size(const format::Cursor& at) {
  const Choice choice = read_choice(at);
  if (choice.key == "as_int") return {read_int(choice.value)};
  if (choice.key != "as_expr") at.fail(unknown_name("key", choice.key, {"as_int", "as_expr"}));
  format::Fields fields(choice.value);
  const format::Cursor text = fields.required("expr_str");
  (void)fields.optional("hint");
  fields.done();
  try {
    return parse_size_expression(text.text());
  } catch (const std::invalid_argument& e) { text.fail(e.what()); }
}

TensorMeta read_tensor_meta(const format::Cursor& at) {
  format::Fields fields(at);
  TensorMeta out;
  out.dtype = read_dtype(fields.required("dtype"));
  const format::Cursor sizes = fields.required("sizes");
  out.sizes = read_sizes(sizes, "size");
  out.strides = read_sizes(fields.required("strides"), "stride");
  const format::Cursor offset = fields.required("storage_offset");
  out.storage_offset = read_size(offset);
  out.device = read_device(fields.required("device"));
  out.requires_grad = fields.required("requires_grad").boolean();
  (void)read_layout(fields.required("layout"));
  fields.done();

  if (out.strides.size() != out.sizes.size())
    at.fail(fmt::format("found {} sizes and {} strides, expected equal numbers", out.sizes.size(), out.strides.size()));
  if (out.storage_offset.kind == SizeExpression::Kind::Number && out.storage_offset.number < 0)
    offset.fail(fmt::format("found an offset of {}, must be at least 0", out.storage_offset.number));
  __extension__ __int128 values = 1;
  for (const SizeExpression& size : out.sizes) {
    if (size.kind == SizeExpression::Kind::Number) values *= size.number;
    if (values > std::numeric_limits<std::int64_t>::max()) sizes.fail("found more values than 64 bits can count");
  }
  return out;
}

}  // namespace stagecraft::intake
