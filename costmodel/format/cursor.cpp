#include "costmodel/format/cursor.h"

#include <set>
#include <stdexcept>

namespace stagecraft {
namespace {

constexpr int kDeepest = 64;

bool is_flat(const Json& value) {
  for (const auto& v : value) {
    if (v.is_structured()) return false;
  }
  return true;
}

void append(std::string& out, const Json& value, int indent) {
  const std::string pad(static_cast<std::size_t>(indent + 2), ' ');
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
    out += "\n" + std::string(static_cast<std::size_t>(indent), ' ') + (value.is_array() ? "]" : "}");
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

}  // namespace

Json parse_document(const std::string& text, const std::string& file) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepest) throw FormatError(file + ": nested deeper than " + std::to_string(kDeepest) + " levels");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw FormatError(file + ": key \"" + parsed.get<std::string>() + "\" stands twice in one object");
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::parse_error& e) {
    std::size_t line = 1;
    std::size_t column = 1;
    for (std::size_t i = 0; i + 1 < e.byte && i < text.size(); ++i) {
      column = text[i] == '\n' ? 1 : column + 1;
      line += text[i] == '\n' ? 1 : 0;
    }
    const std::string where = file + ": line " + std::to_string(line) + " column " + std::to_string(column);
    if (text.empty()) throw FormatError(file + ": is empty, a JSON document is wanted");
    // The parser's text begins "[json.exception.parse_error.101] parse error at line 1, column 2: "; ours replaces
    // that.
    const std::string what = e.what();
    const std::size_t end = what.find(": ");
    throw FormatError(where + ": not JSON: " + (end == what.npos ? what : what.substr(end + 2)));
  } catch (const Json::exception& e) {  // a number beyond double
    const std::string what = e.what();
    throw FormatError(file + ": " + what.substr(what.find("] ") + 2));
  }
}

void check_header(Fields& fields, const std::string& format, int newest) {
  const Cursor name = fields.required("format");
  if (name.text() != format) name.fail_type("\"" + format + "\"");
  const Cursor number = fields.required("version");
  const std::int64_t found = number.integer(0, 1'000'000);
  if (found < 1 || found > newest) {
    number.fail("found version " + std::to_string(found) + ", this program reads version " +
                (newest > 1 ? "1 to " : "") + std::to_string(newest));
  }
}

Json document(const std::string& format, int version) {
  Json out;
  out["format"] = format;
  out["version"] = version;
  return out;
}

std::string dump(const Json& value) {
  std::string out;
  try {
    append(out, value, 0);
  } catch (const Json::type_error&) { throw std::invalid_argument("a name or text in the document is not UTF-8"); }
  return out + "\n";
}

std::map<std::string, std::string> read_text_map(const Cursor& at) {
  if (!at.value().is_object()) at.fail_type("an object");
  std::map<std::string, std::string> out;
  for (const auto& [key, value] : at.value().items()) out[key] = at.inside(value).text();
  return out;
}

Provenance read_provenance(const Cursor& at) {
  Fields fields(at);
  Provenance out;
  if (const auto v = fields.optional("tool")) out.tool = v->text();
  if (const auto v = fields.optional("device")) out.device = v->text();
  if (const auto v = fields.optional("versions")) out.versions = read_text_map(*v);
  if (const auto v = fields.optional("date")) out.date = v->text();
  if (const auto v = fields.optional("notes")) out.notes = read_text_map(*v);
  fields.done();
  return out;
}

Json provenance_json(const Provenance& provenance) {
  Json out = Json::object();
  if (!provenance.tool.empty()) out["tool"] = provenance.tool;
  if (!provenance.device.empty()) out["device"] = provenance.device;
  if (!provenance.versions.empty()) out["versions"] = provenance.versions;
  if (!provenance.date.empty()) out["date"] = provenance.date;
  if (!provenance.notes.empty()) out["notes"] = provenance.notes;
  return out;
}

}  // namespace stagecraft
