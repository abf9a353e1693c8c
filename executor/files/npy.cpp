#include "executor/files/npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/text/number.h"

namespace stagecraft::files {
namespace {

constexpr std::size_t kMostAxes = 32;  // as in NumPy 1

const std::vector<std::pair<std::string, at::ScalarType>>& types() {
  static const std::vector<std::pair<std::string, at::ScalarType>> table{
      {"f2", at::kHalf}, {"f4", at::kFloat}, {"f8", at::kDouble}, {"i1", at::kChar}, {"i2", at::kShort},
      {"i4", at::kInt},  {"i8", at::kLong},  {"u1", at::kByte},   {"b1", at::kBool}};
  return table;
}

/// The part of a Python dictionary's syntax that NumPy writes.
class Literal {
 public:
  Literal(const std::string& text, std::size_t begin, std::size_t end, const std::string& file)
      : text_(text), at_(begin), end_(end), file_(file) {}

  [[noreturn]] void fail(const std::string& wanted) const {
    const std::string found =
        at_ < end_ ? fmt::format("byte {:#04x}", static_cast<unsigned char>(text_[at_])) : "the end";
    throw FormatError(ErrorKind::DamagedData,
                      fmt::format("{}: header, byte {}: found {}, expected {}", file_, at_, found, wanted));
  }
  bool take(char letter) {
    skip();
    if (at_ >= end_ || text_[at_] != letter) return false;
    ++at_;
    return true;
  }
  void expect(char letter) {
    if (!take(letter)) fail(fmt::format("\"{}\"", letter));
  }
  std::string quoted() {
    skip();
    if (at_ >= end_ || (text_[at_] != '\'' && text_[at_] != '"')) fail("a quoted string");
    const std::size_t begin = at_ + 1;
    const std::size_t last = text_.find(text_[at_], begin);
    if (last == std::string::npos || last >= end_) fail("a closing quote");
    at_ = last + 1;
    return text_.substr(begin, last - begin);
  }
  bool truth() {
    skip();
    for (const std::string word : {"True", "False"}) {
      if (at_ + word.size() > end_ || text_.compare(at_, word.size(), word) != 0) continue;
      at_ += word.size();
      return word == "True";
    }
    fail("True or False");
  }
  std::vector<std::int64_t> numbers() {
    expect('(');
    std::vector<std::int64_t> out;
    while (!take(')')) {
      skip();
      std::string_view rest = std::string_view(text_).substr(at_, end_ - at_);
      const std::optional<std::int64_t> value = take_number<std::int64_t>(rest);
      if (!value || *value < 0) fail("a non-negative integer or \")\"");
      if (out.size() == kMostAxes) fail(fmt::format("at most {} axes", kMostAxes));
      at_ = end_ - rest.size();
      out.push_back(*value);
      if (take(',')) continue;
      expect(')');
      break;
    }
    return out;
  }
  void end() {
    skip();
    if (at_ < end_) fail("the end of the header");
  }

 private:
  void skip() {
    while (at_ < end_ && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  const std::string& text_;
  std::size_t at_;
  std::size_t end_;
  const std::string& file_;
};

at::ScalarType type_of(const std::string& word, const std::string& file) {
  std::vector<std::string> known;
  for (const auto& [name, type] : types()) {
    const bool order = word.size() == 3 && (word[0] == '<' || (c10::elementSize(type) == 1 && word[0] == '|'));
    if (order && word.substr(1) == name) return type;
    known.push_back((c10::elementSize(type) == 1 ? "|" : "<") + name);
  }
  throw FormatError(ErrorKind::DamagedData, file + ": header, descr: " + unknown_name("type", word, known));
}

}  // namespace

NpyHeader parse_npy_header(const std::string& text, std::int64_t bytes, const std::string& file) {
  constexpr std::size_t kVersion = 6;
  constexpr std::size_t kLength = 8;
  const auto byte = [&](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(text[i])); };
  if (text.size() < kLength + 2 || text.compare(0, kVersion, "\x93NUMPY") != 0)
    throw FormatError(ErrorKind::DamagedData, file + ": is not a NumPy file (.npy): does not begin with \\x93NUMPY");
  const std::size_t version = byte(kVersion);
  if (version < 1 || version > 3)
    throw FormatError(ErrorKind::DamagedData,
                      fmt::format("{}: found format version {}, expected 1, 2 or 3", file, version));
  const std::size_t width = version == 1 ? 2 : 4;
  if (text.size() < kLength + width) throw FormatError(ErrorKind::DamagedData, file + ": ends within its header");
  std::size_t length = 0;
  for (std::size_t i = 0; i < width; ++i) length |= byte(kLength + i) << (8 * i);
  const std::size_t begin = kLength + width;
  if (length > to_index(kMostNpyHeader) - begin || length > text.size() - begin)
    throw FormatError(ErrorKind::DamagedData,
                      fmt::format("{}: found a header of {} bytes, expected at most {}, all of it in the file", file,
                                  length, kMostNpyHeader - static_cast<std::int64_t>(begin)));

  Literal literal(text, begin, begin + length, file);
  NpyHeader out;
  bool fortran = false;
  std::set<std::string> seen;
  literal.expect('{');
  while (!literal.take('}')) {
    const std::string key = literal.quoted();
    if (!seen.insert(key).second)
      throw FormatError(ErrorKind::DamagedData, file + ": header: \"" + key + "\" appears twice");
    literal.expect(':');
    if (key == "descr") {
      out.dtype = type_of(literal.quoted(), file);
    } else if (key == "fortran_order") {
      fortran = literal.truth();
    } else if (key == "shape") {
      out.shape = literal.numbers();
    } else {
      throw FormatError(ErrorKind::DamagedData,
                        file + ": header: " + unknown_name("key", key, {"descr", "fortran_order", "shape"}));
    }
    if (literal.take(',')) continue;
    literal.expect('}');
    break;
  }
  literal.end();
  for (const char* key : {"descr", "fortran_order", "shape"}) {
    if (!seen.contains(key))
      throw FormatError(ErrorKind::DamagedData, fmt::format("{}: header: \"{}\" is missing", file, key));
  }
  if (fortran && out.shape.size() > 1)
    throw FormatError(ErrorKind::DamagedData, file + ": is in Fortran order; save numpy.ascontiguousarray(x) instead");
  out.begin = static_cast<std::int64_t>(begin + length);

  const std::int64_t rest = bytes - out.begin;
  const auto value = static_cast<std::int64_t>(c10::elementSize(out.dtype));
  std::int64_t wanted = std::ranges::find(out.shape, 0) == out.shape.end() ? value : 0;
  for (const std::int64_t axis : out.shape) {
    if (wanted == 0) break;
    if (axis > rest / wanted) {
      throw FormatError(ErrorKind::DamagedData, fmt::format("{}: found {} bytes of values, shape [{}] needs more", file,
                                                            rest, fmt::join(out.shape, ", ")));
    }
    wanted *= axis;
  }
  if (wanted != rest) {
    throw FormatError(ErrorKind::DamagedData, fmt::format("{}: found {} bytes of values, shape [{}] needs {}", file,
                                                          rest, fmt::join(out.shape, ", "), wanted));
  }
  return out;
}

}  // namespace stagecraft::files
