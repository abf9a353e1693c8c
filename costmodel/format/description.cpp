#include "costmodel/format/description.h"

#include <algorithm>
#include <cmath>

#include "costmodel/errors.h"

namespace stagecraft::format {
namespace {

/// Whole numbers without a decimal point.
Json limit(double value) { return value == std::floor(value) ? Json(static_cast<std::int64_t>(value)) : Json(value); }

/// The schema with `help` as its description, if there is any.
Json described(Json schema, const std::string& help) {
  if (help.empty()) return schema;
  Json out{{"description", help}};
  out.update(schema);
  out["description"] = help;
  return out;
}

/// The members of an object, found by key; the keys usually come in the order of the description.
class Members {
 public:
  explicit Members(const Cursor& at) : at_(at) {
    if (!at.value().is_object()) at.fail_type("an object");
    next_ = at.value().get_ref<const Json::object_t&>().begin();
  }

  /// Absent, and null unless it is required: nothing.
  std::optional<Cursor> find(const AnyField& field) {
    const auto& members = at_.value().get_ref<const Json::object_t&>();
    auto it = next_;
    if (it == members.end() || it->first != field.key) {
      it = std::ranges::find(members, field.key, [](const auto& member) -> const std::string& { return member.first; });
    }
    if (it == members.end()) {
      if (field.required) at_.fail_missing(field.key);
      return std::nullopt;
    }
    next_ = std::next(it);
    ++found_;
    if (!field.required && it->second.is_null()) return std::nullopt;
    return at_.inside(it->second);
  }

  /// Refuses the first key that is not one of `fields`.
  void refuse_unknown(const std::vector<AnyField>& fields) const {
    if (found_ == at_.value().size()) return;
    std::vector<std::string> known;
    for (const AnyField& field : fields) known.push_back(field.key);
    at_.refuse_unknown_keys(known);
  }

 private:
  Cursor at_;
  Json::object_t::const_iterator next_;
  std::size_t found_ = 0;
};

}  // namespace

Codec with_keyword(const Codec& codec, const char* keyword, Json value) {
  Codec out = codec;
  out.schema = [schema = codec.schema, keyword, value = std::move(value)](Json& definitions) {
    Json all = schema(definitions);
    all[keyword] = value;
    return all;
  };
  return out;
}

Codec with_name(const Codec& codec, const char* name) {
  Codec out = codec;
  out.schema = [schema = codec.schema, name](Json& definitions) {
    if (!definitions.contains(name)) {
      Json one = schema(definitions);
      definitions[name] = std::move(one);
    }
    return Json{{"$ref", std::string("#/$defs/") + name}};
  };
  return out;
}

std::function<Json(Json&)> list_schema(std::shared_ptr<const Codec> item) {
  return [item = std::move(item)](Json& definitions) {
    Json out = typed_schema("array", "");
    out["items"] = item->schema(definitions);
    return out;
  };
}

std::function<Json(Json&)> map_schema(std::shared_ptr<const Codec> value) {
  return [value = std::move(value)](Json& definitions) {
    Json out = typed_schema("object", "");
    out["additionalProperties"] = value->schema(definitions);
    return out;
  };
}

Json typed_schema(const char* type, const char* help) {
  Json out;
  if (*help != '\0') out["description"] = help;
  out["type"] = type;
  return out;
}

Json Integer::schema() const {
  Json out = typed_schema("integer", help);
  out["minimum"] = low;
  out["maximum"] = high;
  return out;
}

double Number::read(const Cursor& at) const {
  const double value = at.number();
  if (value < low || value > high || (above && value == low)) at.fail_type(wanted);
  return value;
}

Json Number::schema() const {
  Json out = typed_schema("number", help);
  if (std::isfinite(low)) out[above ? "exclusiveMinimum" : "minimum"] = limit(low);
  if (std::isfinite(high)) out["maximum"] = limit(high);
  return out;
}

Notation<double> number_or_null(const char* help) {
  return {
      [](const Cursor& at) { return at.value().is_null() ? std::numeric_limits<double>::quiet_NaN() : at.number(); },
      [](const double& value) { return std::isfinite(value) ? Json(value) : Json(); },
      [help](Json&) {
        Json out = typed_schema("number", help);
        out["type"] = {"number", "null"};
        return out;
      }};
}

Notation<std::string> text(const char* help) {
  return {[](const Cursor& at) { return at.text(); }, [](const std::string& value) { return Json(value); },
          [help](Json&) { return typed_schema("string", help); }};
}

Notation<bool> boolean(const char* help) {
  return {[](const Cursor& at) { return at.boolean(); }, [](const bool& value) { return Json(value); },
          [help](Json&) { return typed_schema("boolean", help); }};
}

Notation<std::string> words(const char* what, const std::vector<const char*>& known, const char* help) {
  std::vector<std::pair<const char*, std::string>> pairs;
  for (const char* const word : known) pairs.emplace_back(word, word);
  return words<std::string>(what, pairs, help);
}

Notation<std::map<std::string, std::string>> text_map() { return map_of(text()); }

namespace detail {

AnyField member_field(const std::string& key, const std::string& help, std::ptrdiff_t offset,
                      std::shared_ptr<const Codec> codec) {
  AnyField out{.key = key, .help = help};
  out.schema = codec->schema;
  out.write = [offset, codec](const void* whole) { return codec->write(at_offset(whole, offset)); };
  out.read = [offset, codec = std::move(codec)](const Cursor& at, void* whole) {
    codec->read(at, at_offset(whole, offset));
  };
  return out;
}

std::vector<AnyField> at_offset(std::vector<AnyField> fields, std::ptrdiff_t offset) {
  for (AnyField& field : fields) {
    field.read = [offset, inner = std::move(field.read)](const Cursor& at, void* whole) {
      inner(at, at_offset(whole, offset));
    };
    if (field.write) {
      field.write = [offset, inner = std::move(field.write)](const void* whole) {
        return inner(at_offset(whole, offset));
      };
    }
    if (field.written) {
      field.written = [offset, inner = std::move(field.written)](const void* whole) {
        return inner(at_offset(whole, offset));
      };
    }
    if (field.absent)
      field.absent = [offset, inner = std::move(field.absent)](void* whole) { inner(at_offset(whole, offset)); };
  }
  return fields;
}

}  // namespace detail

void read_fields(const Cursor& at, const std::vector<AnyField>& fields, void* whole) {
  Members members(at);
  for (const AnyField& field : fields) {
    if (const std::optional<Cursor> found = members.find(field)) {
      field.read(*found, whole);
    } else if (field.absent) {
      field.absent(whole);
    }
  }
  members.refuse_unknown(fields);
}

Json fields_json(const std::vector<AnyField>& fields, const void* whole) {
  Json out = Json::object();
  std::vector<Json::object_t::value_type>& members = out.get_ref<Json::object_t&>();
  for (const AnyField& field : fields) {
    if (field.write && (!field.written || field.written(whole))) members.emplace_back(field.key, field.write(whole));
  }
  return out;
}

Json fields_schema(const std::vector<AnyField>& fields, const char* help, Json& definitions) {
  Json out = typed_schema("object", help);
  Json& properties = out["properties"] = Json::object();
  Json required = Json::array();
  for (const AnyField& field : fields) {
    if (!field.schema) continue;
    properties[field.key] = described(field.schema(definitions), field.help);
    if (field.required) required.push_back(field.key);
  }
  if (!required.empty()) out["required"] = std::move(required);
  out["additionalProperties"] = false;
  return out;
}

Codec object_codec(std::vector<AnyField> fields, const char* help) {
  const auto shared = std::make_shared<const std::vector<AnyField>>(std::move(fields));
  return {[shared](const Cursor& at, void* whole) { read_fields(at, *shared, whole); },
          [shared](const void* whole) { return fields_json(*shared, whole); },
          [shared, help](Json& definitions) { return fields_schema(*shared, help, definitions); }};
}

Codec row_codec(std::vector<AnyField> columns, const char* help) {
  const auto shared = std::make_shared<const std::vector<AnyField>>(std::move(columns));
  return {[shared](const Cursor& at, void* whole) {
            if (at.elements() != shared->size()) at.fail_type("a row of " + std::to_string(shared->size()) + " values");
            for (std::size_t i = 0; i < shared->size(); ++i) (*shared)[i].read(at.at(i), whole);
          },
          [shared](const void* whole) {
            Json out = Json::array();
            for (const AnyField& column : *shared) out.push_back(column.write(whole));
            return out;
          },
          [shared, help](Json& definitions) {
            Json out = typed_schema("array", help);
            for (const AnyField& column : *shared)
              out["prefixItems"].push_back(described(column.schema(definitions), column.help));
            out["items"] = false;
            out["minItems"] = shared->size();
            return out;
          }};
}

AnyField format_field(const std::string& format) {
  AnyField out{.key = "format", .help = "Names the kind of document."};
  out.read = [format](const Cursor& at, void*) { check_format(at, format); };
  out.write = [format](const void*) { return Json(format); };
  out.schema = [format](Json&) { return Json{{"const", format}}; };
  return out;
}

AnyField version_field(int newest, const char* changes) {
  AnyField out{.key = "version", .help = "Version of this format."};
  if (*changes != '\0') out.help += std::string(" ") + changes;
  out.read = [newest](const Cursor& at, void*) { check_version(at, newest); };
  out.write = [newest](const void*) { return Json(newest); };
  out.schema = [newest](Json&) { return integer(1, newest).schema(); };
  return out;
}

std::string schema_text(const std::string& name, int version, const char* title, const Json& schema,
                        const Json& definitions) {
  Json out;
  out["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  out["$id"] = "urn:stagecraft:" + name + ":" + std::to_string(version);
  out["title"] = title;
  out.update(schema);
  if (!definitions.empty()) out["$defs"] = definitions;
  return dump(out);
}

}  // namespace stagecraft::format
