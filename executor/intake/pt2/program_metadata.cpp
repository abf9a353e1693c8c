#include "executor/intake/pt2/program_metadata.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <stdexcept>

#include "executor/intake/pt2/size_text.h"

namespace stagecraft::intake {
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
