#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/conditions.h"
#include "costmodel/errors.h"
#include "costmodel/graph.h"
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
  void done() const;

 private:
  Cursor at_;
  std::vector<std::string> known_;
};

/// `value` once validate() accepts it; its errors become a FormatError at `root`.
template <class T>
[[nodiscard]] T validated(const Cursor& root, T value) {
  try {
    validate(value);
  } catch (const std::invalid_argument& e) { root.fail(e.what()); }
  return value;
}

/// The parsed document. Throws FormatError with line and column for text that is not JSON, repeats a key, or nests
/// deeper than 64.
[[nodiscard]] Json parse_document(const std::string& text, const std::string& file);
/// Checks the keys "format" and "version" and marks them as known; accepts versions 1 to `newest`.
void check_header(Fields& fields, const std::string& format, int newest);
/// A document that begins with those keys.
[[nodiscard]] Json document(const std::string& format, int version);
/// `value` as text: two-space indentation, numbers that read back to the same value, arrays of numbers on one line.
/// Throws std::invalid_argument for a string that is not UTF-8.
[[nodiscard]] std::string dump(const Json& value);

/// "processor" or "gpu"; not for DeviceKind::Unknown, which documents omit.
[[nodiscard]] DeviceKind read_device_kind(const Cursor& at);
[[nodiscard]] const char* device_kind_word(DeviceKind kind);
/// A number of processors, at least 1.
[[nodiscard]] int read_processors(const Cursor& at);
[[nodiscard]] Conditions read_conditions(const Cursor& at);
[[nodiscard]] Json conditions_json(const Conditions& conditions);
[[nodiscard]] Yardstick read_yardstick(const Cursor& at);
[[nodiscard]] Json yardstick_json(const Yardstick& yardstick);
[[nodiscard]] Provenance read_provenance(const Cursor& at);
[[nodiscard]] Json provenance_json(const Provenance& provenance);
/// Of the fields "name", "shape" and "dtype"; the object may have others.
[[nodiscard]] StateTensor state_tensor_in(Fields& fields);
[[nodiscard]] Json state_tensor_json(const StateTensor& tensor);
[[nodiscard]] std::map<std::string, std::string> read_text_map(const Cursor& at);

}  // namespace stagecraft::format
