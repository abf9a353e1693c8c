#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/units.h"

// Only for the readers of this folder and of executor/intake: a place in a JSON document with its file and pointer.

namespace stagecraft::format {

/// Keys keep the order of writing, so that files read from top to bottom.
using Json = nlohmann::ordered_json;

/// Cheap to copy: the pointer is found in the document on demand.
class Cursor {
 public:
  Cursor(const Json& document, std::string file);

  const Json& value() const { return *value_; }
  /// Throws FormatError "file: pointer: message".
  [[noreturn]] void fail(const std::string& message, ErrorKind kind = ErrorKind::BadDocument) const;
  [[noreturn]] void fail_type(std::string_view wanted, ErrorKind kind = ErrorKind::BadDocument) const;
  [[noreturn]] void fail_missing(const std::string& key) const;
  /// Refuses the first key of this object that is not among `known`.
  void refuse_unknown_keys(const std::vector<std::string>& known) const;

  std::string text() const;
  bool boolean() const;
  double number() const;
  double not_negative() const;
  double positive() const;
  /// An integer in [low, high]; 4.0 counts as an integer.
  std::int64_t integer(std::int64_t low, std::int64_t high) const;
  Seconds seconds() const { return Seconds(not_negative()); }
  Bytes bytes() const { return Bytes(integer(0, kMostBytes)); }

  std::size_t elements() const;
  Cursor at(std::size_t i) const;
  /// The place of a key that the object has.
  Cursor member(const std::string& key) const { return inside((*value_)[key]); }
  /// The place of `value`, which is part of the document.
  Cursor inside(const Json& value) const { return {value, *document_, file_}; }
  /// The same place; errors say `what` after the file.
  Cursor under(const std::string& what) const;
  template <class F>
  auto list(F&& read) const {
    std::vector<decltype(read(*this))> out;
    const std::size_t n = elements();
    out.reserve(n);
    for (std::size_t i = 0; i < n; ++i) out.push_back(read(at(i)));
    return out;
  }
  const std::string& file() const { return *file_; }
  std::string pointer() const;

  /// Half of the 64-bit range, so that a few of them add up without overflow.
  static constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

 private:
  Cursor(const Json& value, const Json& document, std::shared_ptr<const std::string> file)
      : value_(&value), document_(&document), file_(std::move(file)) {}

  bool find_pointer(const Json& in, std::string& pointer) const;

  const Json* value_;
  const Json* document_;
  std::shared_ptr<const std::string> file_;
};

/// An object whose keys are read one by one; `done` refuses unread keys.
class Fields {
 public:
  explicit Fields(const Cursor& at);

  Cursor required(const std::string& key);
  /// Absent and null are the same.
  std::optional<Cursor> optional(const std::string& key);
  void done() const { at_.refuse_unknown_keys(known_); }

 private:
  Cursor at_;
  std::vector<std::string> known_;
};

/// The parsed document. Throws FormatError with line and column for text that is not JSON, repeats a key, or nests
/// deeper than 64.
[[nodiscard]] Json parse_document(const std::string& text, const std::string& file);
/// Checks the key "format".
void check_format(const Cursor& at, const std::string& format);
/// Checks the key "version"; accepts versions 1 to `newest`.
void check_version(const Cursor& at, int newest);
/// Checks both keys and marks them as known.
void check_header(Fields& fields, const std::string& format, int newest);
/// `value` as text: two-space indentation, numbers that read back to the same value, arrays of numbers on one line.
/// Throws std::invalid_argument for a string that is not UTF-8.
[[nodiscard]] std::string dump(const Json& value);

}  // namespace stagecraft::format
