#include "costmodel/format/cursor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

constexpr std::size_t kDeepest = 64;

bool is_flat(const Json& value) {
  for (const auto& v : value) {
    if (v.is_structured()) return false;
  }
  return true;
}

void append(std::string& out, const Json& value, int indent) {
  const std::string pad(to_index(indent + 2), ' ');
  if (value.is_structured() && !value.empty() && !(is_flat(value) && (value.is_array() || value.size() <= 4))) {
    out += value.is_array() ? "[\n" : "{\n";
    bool first = true;
    for (auto it = value.begin(); it != value.end(); ++it) {
      if (!first) out += ",\n";
      first = false;
      out += pad;
      if (value.is_object()) out += Json(it.key()).dump() + ": ";
      append(out, *it, indent + 2);
    }
    out += "\n" + std::string(to_index(indent), ' ') + (value.is_array() ? "]" : "}");
  } else if (value.is_structured()) {
    out += value.is_array() ? "[" : "{";
    bool first = true;
    for (auto it = value.begin(); it != value.end(); ++it) {
      if (!first) out += ", ";
      first = false;
      if (value.is_object()) out += Json(it.key()).dump() + ": ";
      out += it->is_structured() ? (it->is_array() ? "[]" : "{}") : it->dump();
    }
    out += value.is_array() ? "]" : "}";
  } else {
    out += value.dump();
  }
}

/// Builds a document from the parser's events. Members wait until their object is complete, which then takes them all
/// at once: the library's own way compares each key with all before it, and copies the keys whenever the object grows.
class DocumentBuilder {
 public:
  DocumentBuilder(const std::string& text, const std::string& file) : text_(&text), file_(&file) {}

  Json take() { return std::move(values_.front()); }

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(Json(value)); }
  bool number_integer(Json::number_integer_t value) { return add(Json(value)); }
  bool number_unsigned(Json::number_unsigned_t value) { return add(Json(value)); }
  bool number_float(Json::number_float_t value, const std::string& /*text*/) { return add(Json(value)); }
  bool string(std::string& value) { return add(Json(std::move(value))); }
  bool binary(Json::binary_t& /*value*/) { return false; }
  bool start_object(std::size_t /*elements*/) { return open(); }
  bool start_array(std::size_t /*elements*/) { return open(); }
  bool key(std::string& name) {
    keys_.push_back(std::move(name));
    return true;
  }
  bool end_array() {
    const auto first = begin_of(values_, open_.back().values);
    Json out = Json::array();
    auto& items = out.get_ref<Json::array_t&>();
    items.assign(std::make_move_iterator(first), std::make_move_iterator(values_.end()));
    return close(std::move(out));
  }
  bool end_object() {
    check_keys();
    auto key = begin_of(keys_, open_.back().keys);
    Json out = Json::object();
    std::vector<Json::object_t::value_type>& members = out.get_ref<Json::object_t&>();
    members.reserve(to_index(keys_.end() - key));
    for (auto value = begin_of(values_, open_.back().values); value != values_.end(); ++value)
      members.emplace_back(std::move(*key++), std::move(*value));
    return close(std::move(out));
  }
  /// The text that the parser could not read, at character `end`, counted from 1.
  bool parse_error(std::size_t end, const std::string& /*token*/, const Json::exception& error) {
    const std::string what = error.what();
    if (dynamic_cast<const Json::parse_error*>(&error) == nullptr)  // a number beyond double
      throw FormatError(ErrorKind::NotJson, *file_ + ": " + what.substr(what.find("] ") + 2));
    if (text_->starts_with("PK\x03\x04"))
      throw FormatError(ErrorKind::NotJson, *file_ +
                                                ": not JSON but an archive, such as a model; stagecraft profile "
                                                "makes a graph of a model");
    if (file_->ends_with(".py"))
      throw FormatError(ErrorKind::NotJson,
                        fmt::format("{0}: not JSON but Python; stagecraft export-model {0}:FUNCTION "
                                    "makes a model file of it",
                                    *file_));
    std::size_t line = 1;
    std::size_t column = 1;
    for (std::size_t i = 0; i + 1 < end && i < text_->size(); ++i) {
      column = (*text_)[i] == '\n' ? 1 : column + 1;
      if ((*text_)[i] == '\n') ++line;
    }
    // The parser's text begins "[json.exception.parse_error.101] parse error at line 1, column 2: "; ours replaces
    // that.
    // Its end names the characters that it read of a token, which is cut short.
    const std::size_t colon = what.find(": ");
    const std::size_t begin = colon == what.npos ? 0 : colon + 2;
    throw FormatError(ErrorKind::NotJson, fmt::format("{}: line {} column {}: not JSON: {}", *file_, line, column,
                                                      what.substr(begin, what.find("; last read: ") - begin)));
  }

 private:
  /// Where the parts of an incomplete array or object begin.
  struct Open {
    std::size_t keys;
    std::size_t values;
  };

  template <class T>
  static typename std::vector<T>::iterator begin_of(std::vector<T>& of, std::size_t at) {
    return of.begin() + static_cast<std::ptrdiff_t>(at);
  }
  bool add(Json&& value) {
    values_.push_back(std::move(value));
    return true;
  }
  bool open() {
    if (open_.size() == kDeepest)
      throw FormatError(ErrorKind::NotJson, *file_ + ": nested deeper than " + std::to_string(kDeepest) + " levels");
    open_.push_back({keys_.size(), values_.size()});
    return true;
  }
  bool close(Json&& whole) {
    keys_.erase(begin_of(keys_, open_.back().keys), keys_.end());
    values_.erase(begin_of(values_, open_.back().values), values_.end());
    open_.pop_back();
    return add(std::move(whole));
  }
  void check_keys() {
    sorted_.assign(begin_of(keys_, open_.back().keys), keys_.end());
    std::sort(sorted_.begin(), sorted_.end());
    const auto twice = std::adjacent_find(sorted_.begin(), sorted_.end());
    if (twice != sorted_.end())
      throw FormatError(ErrorKind::NotJson,
                        *file_ + ": key \"" + std::string(*twice) + "\" appears twice in one object");
  }

  const std::string* text_;
  const std::string* file_;
  std::vector<Open> open_;
  std::vector<std::string> keys_;  ///< of the open objects
  std::vector<Json> values_;       ///< of the open arrays and objects; at the end only the document
  std::vector<std::string_view> sorted_;
};

}  // namespace

Cursor::Cursor(const Json& document, std::string file)
    : value_(&document), document_(&document), file_(std::make_shared<const std::string>(std::move(file))) {}

void Cursor::fail(const std::string& message, ErrorKind kind) const {
  const std::string found = pointer();
  throw FormatError(kind, file() + ": " + (found.empty() ? "/" : found) + ": " + message);
}

void Cursor::fail_type(std::string_view wanted, ErrorKind kind) const {
  std::string shown = value_->dump(-1, ' ', true, Json::error_handler_t::replace);
  if (shown.size() > 60) shown = shown.substr(0, 57) + "...";
  fail("found " + shown + ", expected " + std::string(wanted), kind);
}

std::string Cursor::text() const {
  if (!value_->is_string()) fail_type("a string");
  return value_->get<std::string>();
}

bool Cursor::boolean() const {
  if (!value_->is_boolean()) fail_type("true or false");
  return value_->get<bool>();
}

double Cursor::number() const {
  if (!value_->is_number()) fail_type("a number");
  const double v = value_->get<double>();
  if (!std::isfinite(v)) fail_type("a finite number");
  return v;
}

double Cursor::not_negative() const {
  const double v = number();
  if (v < 0) fail_type("a number of at least 0");
  return v;
}

double Cursor::positive() const {
  const double v = number();
  if (v <= 0) fail_type("a number above 0");
  return v;
}

std::int64_t Cursor::integer(std::int64_t low, std::int64_t high) const {
  const auto refuse = [&] { fail_type("an integer from " + std::to_string(low) + " to " + std::to_string(high)); };
  std::int64_t v = 0;
  if (value_->is_number_unsigned()) {
    const auto u = value_->get<std::uint64_t>();
    if (u > static_cast<std::uint64_t>(high < 0 ? 0 : high)) refuse();
    v = static_cast<std::int64_t>(u);
  } else if (value_->is_number_integer()) {
    v = value_->get<std::int64_t>();
  } else if (value_->is_number_float()) {
    const double d = value_->get<double>();
    if (!(std::abs(d) <= 9007199254740992.0) || d != std::floor(d)) refuse();
    v = static_cast<std::int64_t>(d);
  } else {
    refuse();
  }
  if (v < low || v > high) refuse();
  return v;
}

std::size_t Cursor::elements() const {
  if (!value_->is_array()) fail_type("an array");
  return value_->size();
}

Cursor Cursor::at(std::size_t i) const { return inside((*value_)[i]); }

Cursor Cursor::under(const std::string& what) const {
  return {*value_, *document_, std::make_shared<const std::string>(file() + ": " + what)};
}

std::string Cursor::pointer() const {
  std::string out;
  (void)find_pointer(*document_, out);
  return out;
}

bool Cursor::find_pointer(const Json& in, std::string& pointer) const {
  if (&in == value_) return true;
  const std::size_t length = pointer.size();
  std::size_t i = 0;
  for (auto it = in.begin(); in.is_structured() && it != in.end(); ++it, ++i) {
    pointer += '/';
    if (in.is_array()) {
      pointer += std::to_string(i);
    } else {
      for (const char c : it.key()) pointer += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    }
    if (find_pointer(*it, pointer)) return true;
    pointer.resize(length);
  }
  return false;
}

void Cursor::fail_missing(const std::string& key) const {
  fail("key \"" + key + "\" is missing", ErrorKind::MissingKey);
}

void Cursor::refuse_unknown_keys(const std::vector<std::string>& known) const {
  for (const auto& [key, value] : value_->items()) {
    if (std::ranges::find(known, key) == known.end()) fail(unknown_name("key", key, known), ErrorKind::UnknownKey);
  }
}

Fields::Fields(const Cursor& at) : at_(at) {
  if (!at.value().is_object()) at.fail_type("an object");
}

Cursor Fields::required(const std::string& key) {
  known_.push_back(key);
  const auto it = at_.value().find(key);
  if (it == at_.value().end()) at_.fail_missing(key);
  return at_.inside(*it);
}

std::optional<Cursor> Fields::optional(const std::string& key) {
  known_.push_back(key);
  const auto it = at_.value().find(key);
  if (it == at_.value().end() || it->is_null()) return std::nullopt;
  return at_.inside(*it);
}

Json parse_document(const std::string& text, const std::string& file) {
  if (text.empty()) throw FormatError(ErrorKind::NotJson, file + ": is empty, expected a JSON document");
  DocumentBuilder builder(text, file);
  (void)Json::sax_parse(text, &builder);
  return builder.take();
}

namespace {

/// A kind of documents that commands read, and the command that users have it from.
struct DocumentWriter {
  std::string_view format;
  std::string_view command;
};

constexpr std::array kWriters{
    DocumentWriter{"stagecraft.graph", "stagecraft profile"}, DocumentWriter{"stagecraft.topology", "stagecraft links"},
    DocumentWriter{"stagecraft.plan", "stagecraft plan"}, DocumentWriter{"stagecraft.prediction", "stagecraft predict"},
    DocumentWriter{"stagecraft.timeline", "stagecraft run"}};

}  // namespace

void check_format(const Cursor& at, const std::string& format) {
  if (at.text() == format) return;
  const auto writer = std::ranges::find(kWriters, format, &DocumentWriter::format);
  const std::string how = writer == kWriters.end() ? "" : ", which " + std::string(writer->command) + " writes";
  at.fail_type("\"" + format + "\"" + how, ErrorKind::OtherDocument);
}

void check_version(const Cursor& at, int newest) {
  const std::int64_t found = at.integer(0, 1'000'000);
  if (found >= 1 && found <= newest) return;
  at.fail("found version " + std::to_string(found) + ", this program reads version " + (newest > 1 ? "1 to " : "") +
              std::to_string(newest),
          ErrorKind::OtherDocument);
}

void check_header(Fields& fields, const std::string& format, int newest) {
  check_format(fields.required("format"), format);
  check_version(fields.required("version"), newest);
}

std::string dump(const Json& value) {
  std::string out;
  try {
    append(out, value, 0);
  } catch (const Json::type_error&) { throw std::invalid_argument("a name or text in the document is not UTF-8"); }
  return out + "\n";
}

}  // namespace stagecraft::format
