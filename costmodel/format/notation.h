#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "costmodel/format/cursor.h"

// Only for descriptions of documents: how single values, lists and maps appear, for readers, writers and JSON Schemas.

namespace stagecraft::format {

/// How values of a type appear in documents, whatever the type: `value` is the place of one. A Notation knows the type.
struct Codec {
  std::function<void(const Cursor&, void* value)> read;  ///< into a default value; throws FormatError
  std::function<Json(const void* value)> write;
  std::function<Json(Json& definitions)> schema;  ///< adds the definitions that it refers to
};

/// The same with `keyword` in the schema.
[[nodiscard]] Codec with_keyword(const Codec& codec, const char* keyword, Json value);
/// The same; schemas define it once, as `name`.
[[nodiscard]] Codec with_name(const Codec& codec, const char* name);

/// How a T appears in documents. Cheap to copy.
template <class T>
class Notation {
 public:
  explicit Notation(Codec codec) : codec_(std::make_shared<const Codec>(std::move(codec))) {}
  Notation(std::function<T(const Cursor&)> read, std::function<Json(const T&)> write,
           std::function<Json(Json& definitions)> schema)
      : Notation(Codec{[read = std::move(read)](const Cursor& at, void* value) { *static_cast<T*>(value) = read(at); },
                       [write = std::move(write)](const void* value) { return write(*static_cast<const T*>(value)); },
                       std::move(schema)}) {}

  [[nodiscard]] T read(const Cursor& at) const {
    T out{};
    codec_->read(at, &out);
    return out;
  }
  [[nodiscard]] Json write(const T& value) const { return codec_->write(&value); }
  [[nodiscard]] Json schema(Json& definitions) const { return codec_->schema(definitions); }
  [[nodiscard]] const std::shared_ptr<const Codec>& codec() const { return codec_; }

  /// The same with `keyword` in the schema, for a limit that validate() or `checked` enforces.
  [[nodiscard]] Notation with(const char* keyword, Json value) const {
    return Notation(with_keyword(*codec_, keyword, std::move(value)));
  }
  /// The same; schemas define it once, as `name`.
  [[nodiscard]] Notation named(const char* name) const { return Notation(with_name(*codec_, name)); }
  /// The same, with `check` of what was read, which throws.
  [[nodiscard]] Notation checked(std::function<void(const Cursor&, const T&)> check) const {
    return Notation(Codec{[codec = codec_, check = std::move(check)](const Cursor& at, void* value) {
                            codec->read(at, value);
                            check(at, *static_cast<const T*>(value));
                          },
                          codec_->write, codec_->schema});
  }

 private:
  std::shared_ptr<const Codec> codec_;
};

/// {"description": help, "type": type}, without an empty description.
[[nodiscard]] Json typed_schema(const char* type, const char* help);

namespace detail {

template <class T, class N>
T from_number(N number) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(number);
  } else {
    return T(static_cast<decltype(T::value)>(number));
  }
}

template <class N, class T>
N to_number(const T& value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<N>(value);
  } else {
    return static_cast<N>(value.value);
  }
}

template <class T>
struct Bare {
  using Type = T;
};
template <class T>
struct Bare<std::optional<T>> {
  using Type = T;
};
template <class T>
constexpr bool is_optional = !std::is_same_v<T, typename Bare<T>::Type>;

/// The notation of an optional is that of its value.
template <class T>
using NotationOf = std::type_identity_t<Notation<typename Bare<T>::Type>>;

}  // namespace detail

// Simple values.

inline constexpr std::int64_t kMany = std::int64_t{1} << 53;  ///< integers that a double holds exactly
inline constexpr int kMost = 1 << 24;                         ///< devices, stages, steps, ...

/// An integer in [low, high]; of integers, Bytes and other quantities.
struct Integer {
  std::int64_t low;
  std::int64_t high;
  const char* help;

  [[nodiscard]] Json schema() const;
  template <class T>
  operator Notation<T>() const {
    return {[low = low, high = high](const Cursor& at) { return detail::from_number<T>(at.integer(low, high)); },
            [](const T& value) { return Json(detail::to_number<std::int64_t>(value)); },
            [self = *this](Json&) { return self.schema(); }};
  }
};
inline Integer integer(std::int64_t low, std::int64_t high, const char* help = "") { return {low, high, help}; }
/// 0 to kMost.
inline Integer whole(const char* help = "") { return {0, kMost, help}; }
/// 0 to Cursor::kMostBytes.
inline Integer bytes() { return {0, Cursor::kMostBytes, ""}; }

/// A finite number in [low, high], without `low` if `above`; of doubles, Seconds and other quantities.
struct Number {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above = false;
  const char* wanted = "";  ///< for messages
  const char* help = "";

  [[nodiscard]] double read(const Cursor& at) const;
  [[nodiscard]] Json schema() const;
  template <class T>
  operator Notation<T>() const {
    return {[self = *this](const Cursor& at) { return detail::from_number<T>(self.read(at)); },
            [](const T& value) { return Json(detail::to_number<double>(value)); },
            [self = *this](Json&) { return self.schema(); }};
  }
};
inline Number finite() { return {}; }
inline Number not_negative() { return {.low = 0, .wanted = "a number of at least 0"}; }
inline Number positive() { return {.low = 0, .above = true, .wanted = "a number above 0"}; }
inline Number share() { return {.low = 0, .high = 1, .wanted = "a number from 0 to 1"}; }
/// NaN and infinities are written as null; null is read as NaN.
[[nodiscard]] Notation<double> number_or_null(const char* help = "");

/// Any text; true or false.
[[nodiscard]] Notation<std::string> text(const char* help = "");
[[nodiscard]] Notation<bool> boolean(const char* help = "");

/// A T written as text. `read` throws FormatError.
template <class T>
Notation<T> as_text(std::function<T(const Cursor&)> read, std::function<std::string(const T&)> write,
                    const char* help = "") {
  return {std::move(read), [write = std::move(write)](const T& value) { return Json(write(value)); },
          [help](Json&) { return typed_schema("string", help); }};
}

/// One of a few words; `what` they are, for messages.
template <class T>
Notation<T> words(const char* what, const std::vector<std::pair<const char*, T>>& known, const char* help = "") {
  std::vector<std::string> names;
  for (const auto& [name, value] : known) names.emplace_back(name);
  const auto schema = [names, help](Json&) {
    Json out = typed_schema("string", help);
    out["enum"] = names;
    return out;
  };
  return {[what, known, names](const Cursor& at) {
            const std::string word = at.text();
            for (const auto& [name, value] : known) {
              if (word == name) return value;
            }
            at.fail(unknown_name(what, word, names));
          },
          [known](const T& value) {
            for (const auto& [name, of] : known) {
              if (of == value) return Json(name);
            }
            return Json();
          },
          schema};
}
[[nodiscard]] Notation<std::string> words(const char* what, const std::vector<const char*>& known,
                                          const char* help = "");

/// The words of an enumeration that ends with `last`, by its to_string.
template <class E>
Notation<E> words(const char* what, E last, const char* help = "") {
  std::vector<std::pair<const char*, E>> known;
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    const E value = static_cast<E>(i);
    known.emplace_back(to_string(value), value);
  }
  return words<E>(what, known, help);
}

// Lists and maps.

/// The schema of an array of what `item` describes.
[[nodiscard]] std::function<Json(Json&)> list_schema(std::shared_ptr<const Codec> item);
/// The schema of an object with any keys.
[[nodiscard]] std::function<Json(Json&)> map_schema(std::shared_ptr<const Codec> value);

/// An array of any length.
template <class T>
Notation<std::vector<T>> list(const Notation<T>& item) {
  return Notation<std::vector<T>>(Codec{[item = item.codec()](const Cursor& at, void* value) {
                                          auto& out = *static_cast<std::vector<T>*>(value);
                                          const std::size_t n = at.elements();
                                          out.clear();
                                          out.reserve(n);
                                          for (std::size_t i = 0; i < n; ++i) {
                                            T one{};
                                            item->read(at.at(i), &one);
                                            out.push_back(std::move(one));
                                          }
                                        },
                                        [item = item.codec()](const void* value) {
                                          Json out = Json::array();
                                          for (const auto& one : *static_cast<const std::vector<T>*>(value))
                                            out.push_back(item->write(&one));
                                          return out;
                                        },
                                        list_schema(item.codec())});
}
/// Refuses an empty array; `wanted` for messages: "one work or more".
template <class T>
Notation<std::vector<T>> filled_list(const Notation<T>& item, const char* wanted) {
  return list(item).with("minItems", 1).checked([wanted](const Cursor& at, const std::vector<T>& values) {
    if (values.empty()) at.fail_type(wanted);
  });
}

/// An object with any keys, written in ascending order.
template <class T>
Notation<std::map<std::string, T>> map_of(const Notation<T>& value) {
  return {[value](const Cursor& at) {
            if (!at.value().is_object()) at.fail_type("an object");
            std::map<std::string, T> out;
            for (const auto& [key, one] : at.value().items()) out[key] = value.read(at.inside(one));
            return out;
          },
          [value](const std::map<std::string, T>& values) {
            Json out = Json::object();
            for (const auto& [key, one] : values) out[key] = value.write(one);
            return out;
          },
          map_schema(value.codec())};
}
[[nodiscard]] Notation<std::map<std::string, std::string>> text_map();

}  // namespace stagecraft::format
