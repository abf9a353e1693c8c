#include "costmodel/format/safetensors_header.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/format/cursor.h"
#include "costmodel/format/notation.h"

namespace stagecraft::format {
namespace {

constexpr const char* kMetadata = "__metadata__";

const std::vector<std::pair<std::string, int>>& dtypes() {
  static const std::vector<std::pair<std::string, int>> table{{"F64", 8}, {"F32", 4},  {"F16", 2}, {"BF16", 2},
                                                              {"I64", 8}, {"I32", 4},  {"I16", 2}, {"I8", 1},
                                                              {"U8", 1},  {"BOOL", 1}, {"C64", 8}};
  return table;
}

SafetensorsEntry read_entry(const Cursor& at) {
  Fields fields(at);
  const Cursor dtype = fields.required("dtype");
  SafetensorsEntry out = read_tensor_type(dtype, fields.required("shape"));
  const Bytes wanted = out.end;
  const Cursor offsets = fields.required("data_offsets");
  if (offsets.elements() != 2) offsets.fail_type("two offsets, of the first byte and after the last");
  out.begin = offsets.at(0).bytes();
  out.end = offsets.at(1).bytes();
  fields.done();
  if (out.end < out.begin || out.end - out.begin != wanted)
    offsets.fail_type("offsets " + std::to_string(wanted.value) + " bytes apart, by dtype and shape");
  return out;
}

/// The tensors' names in the order of their bytes.
std::vector<std::string> in_order(const SafetensorsHeader& header) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : header.tensors) names.push_back(name);
  std::ranges::stable_sort(names, {}, [&](const std::string& name) {
    const SafetensorsEntry& entry = header.tensors.at(name);
    return std::pair(entry.begin.value, entry.end.value);
  });
  return names;
}

}  // namespace

const std::vector<std::string>& safetensors_dtypes() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const auto& [name, bytes] : dtypes()) out.push_back(name);
    return out;
  }();
  return names;
}

Bytes safetensors_value_bytes(const std::string& dtype) {
  for (const auto& [name, bytes] : dtypes()) {
    if (name == dtype) return Bytes(bytes);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("dtype", dtype, safetensors_dtypes()));
}

SafetensorsEntry read_tensor_type(const Cursor& dtype, const Cursor& shape) {
  SafetensorsEntry out{
      dtype.text(), shape.list([](const Cursor& c) { return c.integer(0, Cursor::kMostBytes); }), {}, {}};
  try {
    out.end = safetensors_value_bytes(out.dtype);
  } catch (const std::invalid_argument& e) { dtype.fail(e.what()); }
  if (std::ranges::find(out.shape, 0) != out.shape.end()) out.end = Bytes(0);
  for (const std::int64_t extent : out.shape) {
    if (out.end.value > 0 && extent > Cursor::kMostBytes / out.end.value)
      shape.fail_type("a shape of at most " + std::to_string(Cursor::kMostBytes) + " bytes");
    out.end = Bytes(out.end.value * extent);
  }
  return out;
}

SafetensorsHeader parse_safetensors_header(const std::string& text, Bytes data, const std::string& file) {
  const Json json = parse_document(text, file);
  const Cursor root(json, file);
  if (!json.is_object()) root.fail_type("an object");
  SafetensorsHeader out;
  for (const auto& [name, value] : json.items()) {
    const Cursor at = root.inside(value);
    if (name == kMetadata) {
      out.metadata = text_map().read(at);
    } else {
      out.tensors.emplace(name, read_entry(at));
    }
  }
  std::int64_t expected = 0;
  for (const std::string& name : in_order(out)) {
    const SafetensorsEntry& entry = out.tensors.at(name);
    if (entry.begin.value != expected) {
      root.inside(json.at(name))
          .fail("its bytes begin at " + std::to_string(entry.begin.value) + ", the previous ones end at " +
                std::to_string(expected) + ", expected no hole or overlap");
    }
    expected = entry.end.value;
  }
  if (expected != data.value) {
    throw FormatError(file + ": found " + std::to_string(data.value) + " bytes after the header, expected " +
                      std::to_string(expected) + ", where the last tensor ends");
  }
  return out;
}

std::vector<std::string> parse_shard_index(const std::string& text, const std::string& file) {
  const Json parsed = parse_document(text, file);
  Fields fields(Cursor(parsed, file));
  const Cursor map = fields.required("weight_map");
  if (!map.value().is_object()) map.fail_type("an object, the file of each tensor");
  std::set<std::string> out;
  for (const Json& each : map.value()) {
    const Cursor at = map.inside(each);
    const std::string name = at.text();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
      at.fail("found \"" + name + "\", expected the name of a file beside the index");
    out.insert(name);
  }
  if (out.empty()) map.fail("has no tensors, expected the file of each");
  return {out.begin(), out.end()};
}

std::string safetensors_header_text(const SafetensorsHeader& header) {
  Json out = Json::object();
  if (!header.metadata.empty()) out[kMetadata] = header.metadata;
  for (const std::string& name : in_order(header)) {
    const SafetensorsEntry& entry = header.tensors.at(name);
    out[name] =
        Json{{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin.value, entry.end.value}}};
  }
  std::string text;
  try {
    text = out.dump();
  } catch (const Json::type_error&) { throw std::invalid_argument("a tensor's name or the metadata is not UTF-8"); }
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace stagecraft::format
