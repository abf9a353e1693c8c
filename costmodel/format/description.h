#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "costmodel/format/cursor.h"
#include "costmodel/format/document_schema.h"
#include "costmodel/format/notation.h"

// Only for this folder: what documents consist of, said once. From one description follow the reader, the writer and
// the JSON Schema. A Notation says how a value appears, a Field is a key of an object, a Document has a name and a
// version.

namespace stagecraft::format {

namespace detail {

template <class P>
struct Place;
template <class T, class M>
struct Place<M T::*> {
  using Whole = T;
  using Part = M;
};
template <class P, class Q>
struct MemberPath {
  P first;
  Q rest;
  template <class T>
  auto& operator()(T& whole) const {
    return std::invoke(rest, std::invoke(first, whole));
  }
};
template <class P, class Q>
struct Place<MemberPath<P, Q>> {
  using Whole = typename Place<P>::Whole;
  using Part = typename Place<Q>::Part;
};

template <class P>
using Whole = typename Place<P>::Whole;
template <class P>
using Part = typename Place<P>::Part;
}  // namespace detail

/// A part of a part: path(&Level::link, &Link::latency).
template <class P>
P path(P place) {
  return place;
}
template <class P, class... Rest>
auto path(P first, Rest... rest) {
  return detail::MemberPath<P, decltype(path(rest...))>{first, path(rest...)};
}

// Objects.

/// A key of an object, whatever its type: `whole` is the place of one. Fields know the type.
struct AnyField {
  std::string key;
  std::string help = {};  ///< replaces the description of the notation
  bool required = true;
  std::function<void(const Cursor&, void* whole)> read = {};
  std::function<Json(const void* whole)> write = {};    ///< none for a key of earlier versions, which is only read
  std::function<Json(Json& definitions)> schema = {};   ///< likewise
  std::function<bool(const void* whole)> written = {};  ///< none: always
  std::function<void(void* whole)> absent = {};         ///< what a missing optional key means
};

/// A key of an object that describes a T.
template <class T>
struct Field : AnyField {
  /// Optional, and written only if `condition`.
  [[nodiscard]] Field only_if(std::function<bool(const T&)> condition) && {
    required = false;
    written = [condition = std::move(condition)](const void* whole) {
      return condition(*static_cast<const T*>(whole));
    };
    return std::move(*this);
  }
  /// Written even if it is the default.
  [[nodiscard]] Field always() && {
    written = {};
    return std::move(*this);
  }
  /// Calls `meaning` if the key is missing.
  [[nodiscard]] Field or_else(std::function<void(T&)> meaning) && {
    absent = [meaning = std::move(meaning)](void* whole) { meaning(*static_cast<T*>(whole)); };
    return std::move(*this);
  }
  /// Calls `next` with the place of the value once it was read.
  [[nodiscard]] Field then(std::function<void(const Cursor&, T&)> next) && {
    read = [first = std::move(read), next = std::move(next)](const Cursor& at, void* whole) {
      first(at, whole);
      next(at, *static_cast<T*>(whole));
    };
    return std::move(*this);
  }
};

/// The keys of an object that describes a T, in the order of writing.
template <class T>
struct FieldList {
  std::vector<AnyField> all;
  FieldList() = default;
  FieldList(std::initializer_list<Field<T>> list) : all(list.begin(), list.end()) {}
};

namespace detail {

template <class T>
const T& sample() {
  static const T one{};
  return one;
}

/// Bytes from the begin of a whole to that of its part `place`.
template <class P>
std::ptrdiff_t offset_of(P place) {
  const Whole<P>& whole = sample<Whole<P>>();
  return reinterpret_cast<const char*>(&std::invoke(place, whole)) - reinterpret_cast<const char*>(&whole);
}
inline void* at_offset(void* whole, std::ptrdiff_t offset) { return static_cast<char*>(whole) + offset; }
inline const void* at_offset(const void* whole, std::ptrdiff_t offset) {
  return static_cast<const char*>(whole) + offset;
}

/// An optional in the notation of its value, which it must have.
template <class V>
std::shared_ptr<const Codec> codec_of_optional(const Notation<V>& notation) {
  return std::make_shared<const Codec>(Codec{[codec = notation.codec()](const Cursor& at, void* value) {
                                               codec->read(at, &static_cast<std::optional<V>*>(value)->emplace());
                                             },
                                             [codec = notation.codec()](const void* value) {
                                               return codec->write(&**static_cast<const std::optional<V>*>(value));
                                             },
                                             notation.codec()->schema});
}

[[nodiscard]] AnyField member_field(const std::string& key, const std::string& help, std::ptrdiff_t offset,
                                    std::shared_ptr<const Codec> codec);
[[nodiscard]] std::vector<AnyField> at_offset(std::vector<AnyField> fields, std::ptrdiff_t offset);

template <class M>
std::function<bool(const void*)> differs(std::ptrdiff_t offset, const M& fallback) {
  return
      [offset, fallback](const void* whole) { return !(*static_cast<const M*>(at_offset(whole, offset)) == fallback); };
}
template <class V>
std::function<bool(const void*)> has_value(std::ptrdiff_t offset) {
  return [offset](const void* whole) {
    return static_cast<const std::optional<V>*>(at_offset(whole, offset))->has_value();
  };
}

}  // namespace detail

/// A key that each object has, for the member or path `place`.
template <class P>
Field<detail::Whole<P>> required(const std::string& key, P place, const detail::NotationOf<detail::Part<P>>& notation,
                                 const std::string& help = "") {
  std::shared_ptr<const Codec> codec;
  if constexpr (detail::is_optional<detail::Part<P>>) {
    codec = detail::codec_of_optional(notation);
  } else {
    codec = notation.codec();
  }
  return {detail::member_field(key, help, detail::offset_of(place), std::move(codec))};
}

/// A key that is missing if the member or path `place` has its default, or nothing.
template <class P>
Field<detail::Whole<P>> optional(const std::string& key, P place, const detail::NotationOf<detail::Part<P>>& notation,
                                 const std::string& help = "") {
  using Part = detail::Part<P>;
  Field<detail::Whole<P>> out = required(key, place, notation, help);
  out.required = false;
  const std::ptrdiff_t offset = detail::offset_of(place);
  if constexpr (detail::is_optional<Part>) {
    out.written = detail::has_value<typename Part::value_type>(offset);
  } else {
    out.written = detail::differs<Part>(offset, std::invoke(place, detail::sample<detail::Whole<P>>()));
  }
  return out;
}

/// A key whose value is made by get(whole) and taken by set(place of the value, whole, value).
template <class T, class V>
Field<T> derived(const std::string& key, std::function<V(const T&)> get, std::function<void(const Cursor&, T&, V)> set,
                 const std::type_identity_t<Notation<V>>& notation, const std::string& help = "") {
  Field<T> out{{.key = key, .help = help}};
  out.read = [set = std::move(set), notation](const Cursor& at, void* whole) {
    set(at, *static_cast<T*>(whole), notation.read(at));
  };
  out.write = [get = std::move(get), notation](const void* whole) {
    return notation.write(get(*static_cast<const T*>(whole)));
  };
  out.schema = notation.codec()->schema;
  return out;
}

/// A key that follows from others: readers check its notation and ignore it. With an optional, missing without a value.
template <class T, class V>
Field<T> shown(const std::string& key, const std::function<V(const T&)>& get, const detail::NotationOf<V>& notation,
               const std::string& help = "") {
  Field<T> out{{.key = key, .help = help}};
  out.read = [notation](const Cursor& at, void*) { (void)notation.read(at); };
  out.schema = notation.codec()->schema;
  if constexpr (detail::is_optional<V>) {
    out.required = false;
    out.written = [get](const void* whole) { return get(*static_cast<const T*>(whole)).has_value(); };
    out.write = [get, notation](const void* whole) { return notation.write(*get(*static_cast<const T*>(whole))); };
  } else {
    out.write = [get, notation](const void* whole) { return notation.write(get(*static_cast<const T*>(whole))); };
  }
  return out;
}

/// A key of earlier versions, whose notation is checked and which is ignored.
template <class T, class V>
Field<T> former(const std::string& key, const Notation<V>& notation) {
  Field<T> out{{.key = key, .required = false}};
  out.read = [notation](const Cursor& at, void*) { (void)notation.read(at); };
  return out;
}

/// All of the lists, in order.
template <class T>
FieldList<T> fields(std::initializer_list<std::type_identity_t<FieldList<T>>> lists) {
  FieldList<T> out;
  for (const FieldList<T>& one : lists) out.all.insert(out.all.end(), one.all.begin(), one.all.end());
  return out;
}

/// The fields of the part `place`, as keys of the whole.
template <class P>
FieldList<detail::Whole<P>> embedded(P place, const FieldList<detail::Part<P>>& of_part) {
  FieldList<detail::Whole<P>> out;
  out.all = detail::at_offset(of_part.all, detail::offset_of(place));
  return out;
}

/// Reads each key into `whole`; refuses others.
void read_fields(const Cursor& at, const std::vector<AnyField>& fields, void* whole);
[[nodiscard]] Json fields_json(const std::vector<AnyField>& fields, const void* whole);
/// {"description": help, "type": "object", "properties": ..., "required": ..., "additionalProperties": false}.
[[nodiscard]] Json fields_schema(const std::vector<AnyField>& fields, const char* help, Json& definitions);
/// An object with these keys; an array of such values.
[[nodiscard]] Codec object_codec(std::vector<AnyField> fields, const char* help);
[[nodiscard]] Codec row_codec(std::vector<AnyField> columns, const char* help);

namespace detail {

/// `codec`, and `after` once the whole was read.
template <class T>
Notation<T> notation_then(Codec codec, std::function<void(const Cursor&, T&)> after) {
  if (after) {
    codec.read = [read = std::move(codec.read), after = std::move(after)](const Cursor& at, void* whole) {
      read(at, whole);
      after(at, *static_cast<T*>(whole));
    };
  }
  return Notation<T>(std::move(codec));
}

}  // namespace detail

/// An object of these keys and no others. `after` is called once all keys were read.
template <class T>
Notation<T> object(FieldList<T> fields, const char* help = "", std::function<void(const Cursor&, T&)> after = {}) {
  return detail::notation_then<T>(object_codec(std::move(fields.all), help), std::move(after));
}

/// A key whose object has keys for parts of the same T.
template <class T>
Field<T> group(const std::string& key, FieldList<T> fields, const std::string& help = "") {
  const auto codec = std::make_shared<const Codec>(object_codec(std::move(fields.all), ""));
  return {detail::member_field(key, help, 0, codec)};
}

/// An array of exactly these values, whose keys are only names for people.
template <class T>
Notation<T> row(FieldList<T> columns, const char* help, std::function<void(const Cursor&, T&)> after = {}) {
  return detail::notation_then<T>(row_codec(std::move(columns.all), help), std::move(after));
}

// Documents.

/// The keys "format" and "version".
[[nodiscard]] AnyField format_field(const std::string& format);
[[nodiscard]] AnyField version_field(int newest, const char* changes);
/// {"$schema": ..., "$id": "urn:stagecraft:NAME:VERSION", "title": ..., then `schema`, then the definitions}, as text.
[[nodiscard]] std::string schema_text(const std::string& name, int version, const char* title, const Json& schema,
                                      const Json& definitions);

/// A type of document, whose format is "stagecraft.NAME": reads, writes and describes it.
template <class T>
class Document {
 public:
  struct About {
    const char* name;
    int version;  ///< the newest; readers accept all from 1
    const char* title;
    const char* help;
    const char* changes = "";  ///< "Version 2 added actions."
  };

  /// `after` is called with the root once all keys were read; it throws.
  Document(const About& about, const FieldList<T>& of_format, std::function<void(const Cursor&, T&)> after = {})
      : about_(about), after_(std::move(after)) {
    fields_ = {format_field(std::string("stagecraft.") + about.name), version_field(about.version, about.changes)};
    fields_.insert(fields_.end(), of_format.all.begin(), of_format.all.end());
  }

  /// Throws FormatError.
  [[nodiscard]] T parse(const std::string& text, const std::string& file) const {
    const Json json = parse_document(text, file);
    const Cursor root(json, file);
    T out{};
    read_fields(root, fields_, &out);
    if (after_) after_(root, out);
    return out;
  }
  [[nodiscard]] std::string text(const T& value) const { return dump(fields_json(fields_, &value)); }
  [[nodiscard]] DocumentSchema schema() const {
    Json definitions = Json::object();
    const Json schema = fields_schema(fields_, about_.help, definitions);
    return {about_.name, about_.help, schema_text(about_.name, about_.version, about_.title, schema, definitions)};
  }

 private:
  About about_;
  std::function<void(const Cursor&, T&)> after_;
  std::vector<AnyField> fields_;
};

/// For Document::after: refuses what validate() refuses.
template <class T>
void refuse_invalid(const Cursor& root, T& value) {
  try {
    validate(value);
  } catch (const std::invalid_argument& e) { root.fail(e.what()); }
}

}  // namespace stagecraft::format
