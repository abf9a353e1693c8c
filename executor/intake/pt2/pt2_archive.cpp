#include "executor/intake/pt2/pt2_archive.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/intake/pt2/program_metadata.h"

namespace stagecraft::intake {
namespace {

/// More than any program or configuration takes.
constexpr std::uint64_t kMostJsonBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kMostWordBytes = 64;

/// An archive's records under its root folder.
struct Records {
  const files::ZipArchive* zip;
  std::string root;

  [[nodiscard]] const files::ZipRecord* find(const std::string& name) const { return zip->find(root + "/" + name); }
  [[nodiscard]] std::string place(const std::string& name) const { return zip->path() + ": " + name; }
};

std::string read_root(const files::ZipArchive& zip) {
  std::string root;
  for (const files::ZipRecord& record : zip.records()) {
    const std::size_t slash = record.name.find('/');
    if (slash == std::string::npos)
      throw FormatError(ErrorKind::DamagedFile, zip.path() + ": record \"" + record.name +
                                                    "\": is not in a folder, expected one folder for all records");
    const std::string found = record.name.substr(0, slash);
    if (root.empty()) root = found;
    if (found != root)
      throw FormatError(ErrorKind::DamagedFile, zip.path() + ": found the folders \"" + root + "\" and \"" + found +
                                                    "\", expected one for all records");
  }
  return root;
}

void check_word(const Records& records, const std::string& name, const std::string& wanted) {
  const files::ZipRecord* const record = records.find(name);
  if (record == nullptr)
    throw FormatError(ErrorKind::NotAModel,
                      records.place(name) + ": is missing, expected an archive of torch.export.save");
  const std::string found = records.zip->read(*record, kMostWordBytes);
  if (found != wanted)
    throw FormatError(
        ErrorKind::DamagedFile,
        fmt::format("{}: found {}, expected \"{}\"", records.place(name),
                    format::Json(found).dump(-1, ' ', true, format::Json::error_handler_t::replace), wanted));
}

bool is_payload_name(const std::string& name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  };
  return !name.empty() && name != "." && name != ".." && std::ranges::all_of(name, plain);
}

std::string find_model(const Records& records) {
  const std::string folder = records.root + "/models/";
  std::vector<std::string> models;
  for (const files::ZipRecord& record : records.zip->records()) {
    if (record.name.starts_with(folder) && record.name.ends_with(".json"))
      models.push_back(record.name.substr(folder.size(), record.name.size() - folder.size() - 5));
  }
  if (models.empty())
    throw FormatError(ErrorKind::DamagedFile,
                      records.zip->path() + ": found no models/*.json, expected one model: saving it may have failed");
  if (models.size() > 1) {
    std::string names;
    for (const std::string& model : models) names += (names.empty() ? "" : ", ") + model;
    throw FormatError(ErrorKind::DamagedFile,
                      fmt::format("{}: found {} models, expected one: {}", records.zip->path(), models.size(), names));
  }
  if (!is_payload_name(models[0]))
    throw FormatError(ErrorKind::DamagedFile, records.zip->path() + ": found a model \"" + models[0] +
                                                  "\", expected a name of letters, digits, \"_\" and \".\"");
  return models[0];
}

std::vector<std::int64_t> numbers(const format::Cursor& at, const std::vector<SizeExpression>& expressions) {
  std::vector<std::int64_t> out;
  for (const SizeExpression& expression : expressions) {
    const auto value = constant_value(expression);
    if (!value || *value < 0) at.fail("found " + to_string(expression) + ", expected a number of at least 0");
    out.push_back(*value);
  }
  return out;
}

/// Refuses a tensor that exceeds its record.
void check_bytes(const format::Cursor& at, const StoredTensor& tensor, const files::ZipRecord& record) {
  __extension__ using Wide = __int128;
  const auto value_bytes = static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
  if (record.offset % static_cast<std::uint64_t>(value_bytes) != 0)
    at.fail(fmt::format("record \"{}\" begins at byte {}, expected a multiple of {}", record.name, record.offset,
                        value_bytes));
  if (std::ranges::find(tensor.sizes, 0) != tensor.sizes.end()) return;
  Wide last = tensor.storage_offset;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    last += static_cast<Wide>(tensor.sizes[i] - 1) * tensor.strides[i];
    // Each term is below 2^126: checked one by one, the sum cannot overflow.
    if ((last + 1) * value_bytes > static_cast<Wide>(record.bytes) || last < 0) {
      at.fail(fmt::format("the tensor exceeds the {} bytes of record \"{}\"", record.bytes, record.name));
    }
  }
}

void read_configuration(const Records& records, const std::string& folder, const std::string& model,
                        const std::string& suffix, std::map<std::string, StoredTensor>& out) {
  const std::string name = folder + model + suffix;
  const files::ZipRecord* const record = records.find(name);
  if (record == nullptr) return;
  const std::string place = records.place(name);
  const format::Json document = format::parse_document(records.zip->read(*record, kMostJsonBytes), place);
  const format::Cursor root(document, place);
  format::Fields top(root);
  const format::Cursor config = top.required("config");
  top.done();
  if (!config.value().is_object()) config.fail_type("an object");
  for (const auto& [key, value] : config.value().items()) {
    const format::Cursor at = config.inside(value);
    format::Fields fields(at);
    const format::Cursor path = fields.required("path_name");
    const bool parameter = fields.required("is_param").boolean();
    const format::Cursor pickled = fields.required("use_pickle");
    if (pickled.boolean()) pickled.fail("found a pickled payload, expected the plain bytes of a tensor");
    const format::Cursor meta_place = fields.required("tensor_meta");
    fields.done();
    const std::string file = path.text();
    if (!is_payload_name(file))
      path.fail("found a payload \"" + file + "\", expected a name of letters, digits, \"_\" and \".\"");
    const TensorMeta meta = read_tensor_meta(meta_place);
    StoredTensor tensor{.record = records.root + "/" + folder + file,
                        .dtype = meta.dtype,
                        .sizes = numbers(meta_place, meta.sizes),
                        .strides = numbers(meta_place, meta.strides),
                        .storage_offset = numbers(meta_place, {meta.storage_offset})[0],
                        .parameter = parameter,
                        .requires_grad = meta.requires_grad};
    const files::ZipRecord* const payload = records.zip->find(tensor.record);
    if (payload == nullptr) path.fail("the archive has no record \"" + tensor.record + "\"");
    if (payload->bytes == 0 && meta.device.is_meta()) {
      tensor.has_values = false;
      tensor.record = records.root + "/" + folder + key;  // all of them share an empty one
    } else {
      check_bytes(at, tensor, *payload);
    }
    if (!out.emplace(key, std::move(tensor)).second) at.fail("\"" + key + "\" is both a weight and a constant");
  }
}

/// Refuses parameters, buffers and constants without bytes, or whose description differs from the program's.
void check_tensors(const Pt2Archive& archive, const Records& records) {
  for (const ProgramInput& input : archive.program.inputs) {
    if (input.kind == ProgramInput::Kind::User || input.kind == ProgramInput::Kind::Folded) continue;
    const bool weight =
        input.kind == ProgramInput::Kind::Parameter || (input.kind == ProgramInput::Kind::Buffer && input.persistent);
    const std::string name = weight ? "data/weights/" + archive.model + "_weights_config.json"
                                    : "data/constants/" + archive.model + "_constants_config.json";
    const std::string place = records.place(name) + ": \"" + input.name + "\": ";
    const auto found = archive.tensors.find(input.name);
    if (found == archive.tensors.end())
      throw FormatError(ErrorKind::DamagedFile, place + "is missing, but the program reads it");
    const StoredTensor& tensor = found->second;
    if (tensor.parameter != (input.kind == ProgramInput::Kind::Parameter))
      throw FormatError(ErrorKind::DamagedFile,
                        place + "is_param is " + (tensor.parameter ? "true" : "false") + ", unlike in the program");
    const TensorMeta& meta = *archive.program.graph.values.at(to_index(input.value.index)).tensor;
    const auto equal = [](const std::vector<std::int64_t>& stored, const std::vector<SizeExpression>& wanted) {
      return std::ranges::equal(stored, wanted,
                                [](std::int64_t a, const SizeExpression& b) { return constant_value(b) == a; });
    };
    const auto listed = [](const std::vector<SizeExpression>& sizes) {
      std::string out;
      for (const SizeExpression& size : sizes) out += (out.empty() ? "" : ", ") + to_string(size);
      return "[" + out + "]";
    };
    if (tensor.dtype != meta.dtype)
      throw FormatError(ErrorKind::DamagedFile,
                        place + "found " + c10::toString(tensor.dtype) + ", expected " + c10::toString(meta.dtype));
    if (!equal(tensor.sizes, meta.sizes))
      throw FormatError(ErrorKind::DamagedFile, place + fmt::format("found sizes [{}], expected {}",
                                                                    fmt::join(tensor.sizes, ", "), listed(meta.sizes)));
    if (!equal(tensor.strides, meta.strides))
      throw FormatError(ErrorKind::DamagedFile,
                        place + fmt::format("found strides [{}], expected {}", fmt::join(tensor.strides, ", "),
                                            listed(meta.strides)));
  }
}

template <class T>
std::vector<std::string> keys_of(const std::map<std::string, T>& map) {
  std::vector<std::string> out;
  for (const auto& [key, value] : map) out.push_back(key);
  return out;
}

ExportNotes read_notes(const std::string& text, const std::string& place, const Pt2Archive& archive) {
  const format::Json document = format::parse_document(text, place);
  const format::Cursor root(document, place);
  format::Fields fields(root);
  format::check_header(fields, "stagecraft.pt2", 3);
  ExportNotes out;
  std::set<std::string> symbols;
  std::map<std::string, const ProgramValue*> given;
  for (const ProgramInput& input : archive.program.inputs) {
    if (input.kind != ProgramInput::Kind::User) continue;
    const ProgramValue& value = archive.program.graph.values.at(to_index(input.value.index));
    given[input.name] = &value;
    if (!value.tensor) continue;
    for (const SizeExpression& size : value.tensor->sizes) symbols.merge(symbols_of(size));
  }
  if (const auto symbol = fields.optional("batch_symbol")) {
    out.batch_symbol = symbol->text();
    if (!symbols.contains(out.batch_symbol)) symbol->fail("the program has no symbol \"" + out.batch_symbol + "\"");
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  if (const auto inputs = fields.optional("inputs")) {
    out.inputs = inputs->list([&](const format::Cursor& at) {
      format::Fields parts(at);
      ExportedInput input;
      const format::Cursor name = parts.required("name");
      input.name = name.text();
      const auto value = given.find(input.name);
      if (value == given.end()) name.fail(unknown_name("input", input.name, keys_of(given)));
      const auto dimensions = value->second->tensor ? std::ssize(value->second->tensor->sizes) : 0;
      if (const auto axis = parts.optional("batch_axis")) input.batch_axis = to_int(axis->integer(0, dimensions - 1));
      if (const auto range = parts.optional("range")) {
        if (range->elements() != 2) range->fail_type("[from, to], to excluded");
        input.range = {range->at(0).integer(-kMost, kMost), range->at(1).integer(-kMost, kMost)};
        if (input.range->first >= input.range->second) range->fail_type("a range that is not empty");
      }
      parts.done();
      return input;
    });
  }
  if (const auto samples = fields.optional("samples")) {
    format::Fields parts(*samples);
    const std::int64_t least = parts.required("least").integer(1, kMost);
    out.samples = {least, parts.required("most").integer(least, kMost)};
    parts.done();
  }
  const auto outputs = static_cast<std::int64_t>(archive.program.graph.outputs.size());
  if (const auto keys = fields.optional("output_keys")) {
    out.output_keys = keys->list([](const format::Cursor& at) { return at.text(); });
    if (std::ssize(out.output_keys) != outputs)
      keys->fail("found " + std::to_string(out.output_keys.size()) + " keys, the program has " +
                 std::to_string(outputs) + " outputs");
  }
  if (const auto scores = fields.optional("scores_output")) out.scores_output = to_int(scores->integer(0, outputs - 1));
  if (const auto loss = fields.optional("loss_output")) out.loss_output = to_int(loss->integer(0, outputs - 1));
  if (const auto tied = fields.optional("tied")) {
    out.tied = tied->list([&](const format::Cursor& names) {
      return names.list([&](const format::Cursor& at) {
        const std::string name = at.text();
        if (!archive.tensors.contains(name)) at.fail(unknown_name("tensor", name, keys_of(archive.tensors)));
        return name;
      });
    });
  }
  if (const auto kind = fields.optional("loss_kind")) {
    const std::string name = kind->text();
    if (name != "sum" && name != "across") kind->fail(unknown_name("kind", name, {"sum", "across"}));
    out.loss_kind = name == "sum" ? model::LossKind::Sum : model::LossKind::Across;
  }
  if (const auto weight = fields.optional("loss_weight")) {
    format::Fields parts(*weight);
    const auto value = [&](const format::Cursor& at) {
      const std::string name = at.text();
      if (std::ranges::find(archive.program.graph.values, name, &ProgramValue::name) ==
          archive.program.graph.values.end())
        at.fail("the program has no value \"" + name + "\"");
      return name;
    };
    out.loss_weight.emplace().count = value(parts.required("count"));
    if (const auto label = parts.optional("ignored")) out.loss_weight->ignored = label->integer(-kMost, kMost);
    if (const auto classes = parts.optional("class_weights")) out.loss_weight->class_weights = value(*classes);
    if (const auto least = parts.optional("least")) out.loss_weight->least = least->number();
    if (const auto added = parts.optional("added")) out.loss_weight->added = added->number();
    if (const auto labels = parts.optional("labels")) {
      out.loss_weight->labels = labels->text();
      if (!given.contains(out.loss_weight->labels))
        labels->fail(unknown_name("input", out.loss_weight->labels, keys_of(given)));
    }
    parts.done();
  }
  if (const auto training = fields.optional("training")) out.training = training->boolean();
  if (const auto evaluates = fields.optional("evaluates")) out.evaluates = evaluates->boolean();
  for (const char* unread : {"model", "torch"}) (void)fields.optional(unread);
  fields.done();
  return out;
}

/// Tensors without values share no bytes by which tied ones could be told: the notes name them.
void tie_without_values(const std::vector<std::vector<std::string>>& tied,
                        std::map<std::string, StoredTensor>& tensors) {
  for (const std::vector<std::string>& names : tied) {
    for (const std::string& name : names) {
      StoredTensor& tensor = tensors.at(name);
      if (!tensor.has_values) tensor.record = tensors.at(names.front()).record;
    }
  }
}

}  // namespace

Pt2Archive read_pt2_archive(const std::string& path) {
  Pt2Archive out;
  out.zip = std::make_shared<const files::ZipArchive>(path);
  out.root = read_root(*out.zip);
  const Records records{out.zip.get(), out.root};
  check_word(records, "archive_format", "pt2");
  check_word(records, "archive_version", "0");
  check_word(records, "byteorder", "little");
  out.model = find_model(records);
  const std::string name = "models/" + out.model + ".json";
  out.program = read_exported_program(out.zip->read(*records.find(name), kMostJsonBytes), records.place(name));
  read_configuration(records, "data/weights/", out.model, "_weights_config.json", out.tensors);
  read_configuration(records, "data/constants/", out.model, "_constants_config.json", out.tensors);
  check_tensors(out, records);
  if (const files::ZipRecord* const notes = records.find("extra/stagecraft.json")) {
    out.notes = read_notes(out.zip->read(*notes, kMostJsonBytes), records.place("extra/stagecraft.json"), out);
    tie_without_values(out.notes->tied, out.tensors);
  }
  return out;
}

}  // namespace stagecraft::intake
