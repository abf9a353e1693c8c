#include "costmodel/format/checkpoint_manifest.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>

#include "costmodel/format/cursor.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

constexpr const char* kFormat = "stagecraft.checkpoint";
constexpr int kVersion = 6;
constexpr std::int64_t kMany = std::int64_t{1} << 53;

/// An unsigned number as text in `base`; `wanted` for messages. Only the writer's form is accepted.
template <class T>
T read_digits(const Cursor& at, int base, std::size_t digits, const std::string& wanted) {
  const std::string text = at.text();
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  const bool whole = error == std::errc() && end == text.data() + text.size() && !text.starts_with('-');
  const bool form = digits != 0 ? text.size() == digits && text.find_first_of("ABCDEF") == text.npos
                                : text == "0" || !text.starts_with('0');
  if (!whole || !form) at.fail_type(wanted);
  return value;
}

std::string crc_text(std::uint32_t crc) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", crc);
  return text;
}

std::uint32_t read_crc(const Cursor& at) { return read_digits<std::uint32_t>(at, 16, 8, "8 hexadecimal digits"); }

CheckpointFile read_file(const Cursor& at) {
  Fields fields(at);
  CheckpointFile out;
  const Cursor name = fields.required("name");
  out.name = name.text();
  if (out.name.empty() || out.name.starts_with('.') || out.name.find('/') != out.name.npos ||
      out.name.find('\0') != out.name.npos)
    name.fail_type("the name of a file next to the manifest");
  out.bytes = fields.required("file_bytes").bytes();
  out.crc32 = read_crc(fields.required("crc32"));
  fields.done();
  return out;
}

void read_optimizer(const Cursor& at, CheckpointManifest& out) {
  Fields fields(at);
  out.optimizer = fields.required("name").text();
  out.learning_rate = fields.required("learning_rate").number();
  out.momentum = fields.required("momentum").number();
  out.weight_decay = fields.required("weight_decay").number();
  out.beta1 = fields.required("beta1").number();
  out.beta2 = fields.required("beta2").number();
  out.epsilon = fields.required("epsilon").number();
  if (const auto v = fields.optional("settings")) out.optimizer_settings = read_text_map(*v);
  fields.done();
}

/// First indices of a slice of a tensor of `shape`, or how many.
std::vector<std::int64_t> read_indices(const Cursor& at, const std::vector<std::int64_t>& shape) {
  if (at.elements() != shape.size())
    at.fail_type(std::to_string(shape.size()) + " numbers, one for each dimension of the tensor");
  return at.list([](const Cursor& c) { return c.integer(0, Cursor::kMostBytes); });
}

/// Refuses pieces outside the tensor, two with a common element, and a tensor with an element in none.
void check_pieces(const Cursor& at, const std::string& name, const SavedTensor& tensor) {
  const std::string what = "tensor \"" + name + "\": found ";
  std::vector<std::size_t> order;
  std::int64_t found = 0;
  for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
    const TensorSlice& part = tensor.pieces[i].part;
    if (!is_inside(part, tensor.shape)) {
      at.at(i).fail(what + "the piece " + slice_text(part) + ", expected one inside " +
                    slice_text(whole_slice(tensor.shape)));
    }
    if (element_count(part.shape) > 0) order.push_back(i);
  }
  std::ranges::sort(order, {}, [&](std::size_t i) { return tensor.pieces[i].part.begin; });
  for (auto it = order.begin(); it != order.end(); ++it) {
    const TensorSlice& part = tensor.pieces[*it].part;
    for (auto next = it + 1; next != order.end(); ++next) {
      const TensorSlice& other = tensor.pieces[*next].part;
      if (!part.begin.empty() && other.begin.front() >= part.begin.front() + part.shape.front()) break;
      if (element_count(common_part(part, other).shape) == 0) continue;
      at.at(*next).fail(what + "the piece " + slice_text(other) + ", which overlaps " + slice_text(part) +
                        ", expected each element once");
    }
    found += element_count(part.shape);
  }
  const std::int64_t wanted = element_count(tensor.shape);
  if (found != wanted || tensor.pieces.empty()) {
    at.fail(what + "pieces with " + std::to_string(found) + " of " + std::to_string(wanted) +
            " elements, expected all in one piece or more");
  }
}

void read_tensor(const Cursor& at, const std::set<std::string>& files, CheckpointManifest& out) {
  Fields fields(at);
  const Cursor name = fields.required("name");
  const auto [it, fresh] = out.tensors.try_emplace(name.text());
  if (!fresh) name.fail("tensor \"" + it->first + "\" appears twice");
  SavedTensor& tensor = it->second;
  const SafetensorsEntry type = read_tensor_type(fields);
  tensor.dtype = type.dtype;
  tensor.shape = type.shape;
  const Cursor pieces = fields.required("pieces");
  tensor.pieces = pieces.list([&](const Cursor& piece) {
    Fields of_piece(piece);
    TensorPiece read{of_piece.required("file").text(), whole_slice(tensor.shape)};
    if (!files.contains(read.file)) {
      piece.fail("tensor \"" + it->first + "\": " + unknown_name("file", read.file, {files.begin(), files.end()}));
    }
    if (const auto v = of_piece.optional("begin")) read.part.begin = read_indices(*v, tensor.shape);
    if (const auto v = of_piece.optional("shape")) read.part.shape = read_indices(*v, tensor.shape);
    of_piece.done();
    return read;
  });
  fields.done();
  check_pieces(pieces, it->first, tensor);
}

Json tensors_json(const CheckpointManifest& manifest) {
  Json out = Json::array();
  for (const auto& [name, tensor] : manifest.tensors) {
    Json pieces = Json::array();
    for (const TensorPiece& piece : tensor.pieces) {
      Json& written = pieces.emplace_back(Json{{"file", piece.file}});
      if (piece.part == whole_slice(tensor.shape)) continue;
      written["begin"] = piece.part.begin;
      written["shape"] = piece.part.shape;
    }
    out.push_back(Json{{"name", name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"pieces", pieces}});
  }
  return out;
}

}  // namespace

CheckpointManifest parse_checkpoint(const std::string& text, const std::string& file) {
  const Json json = parse_document(text, file);
  const Cursor root(json, file);
  Fields fields(root);
  check_header(fields, kFormat, kVersion);
  CheckpointManifest out;
  out.step = fields.required("step").integer(0, kMany);
  out.seed = read_digits<std::uint64_t>(fields.required("seed"), 10, 0, "a 64-bit integer as text");
  out.model = fields.required("model").text();
  out.options = read_text_map(fields.required("options"));
  read_optimizer(fields.required("optimizer"), out);
  out.data = fields.required("data").text();
  out.samples = fields.required("samples").integer(0, kMany);
  out.microbatches = to_int(fields.required("microbatches").integer(1, 1 << 20));
  out.microbatch_samples = fields.required("microbatch_samples").integer(1, kMany);
  if (const auto v = fields.optional("loss_scale")) {
    Fields scale(*v);
    out.loss_scale = scale.required("scale").number();
    out.loss_scale_steps = scale.required("steps").integer(0, kMany);
    scale.done();
  }
  if (const auto v = fields.optional("plateau")) {
    Fields plateau(*v);
    out.plateau.emplace();
    out.plateau->factor = plateau.required("factor").not_negative();
    if (const auto best = plateau.optional("best")) out.plateau->best = best->number();
    out.plateau->waited = plateau.required("waited").integer(0, kMany);
    plateau.done();
  }
  if (const auto v = fields.optional("finite")) out.finite = v->boolean();
  out.plan_hash = fields.required("plan_hash").text();
  const Cursor files = fields.required("files");
  out.files = files.list(read_file);
  if (out.files.empty()) files.fail_type("at least one file");
  std::set<std::string> names;
  for (std::size_t i = 0; i < out.files.size(); ++i) {
    if (!names.insert(out.files[i].name).second) files.at(i).fail("file \"" + out.files[i].name + "\" appears twice");
  }
  if (const auto v = fields.optional("tensors")) {
    for (std::size_t i = 0; i < v->elements(); ++i) read_tensor(v->at(i), names, out);
  }
  out.manifest_crc32 = read_crc(fields.required("manifest_crc32"));
  if (const auto v = fields.optional("provenance")) out.provenance = read_provenance(*v);
  fields.done();
  return out;
}

std::string checkpoint_json(const CheckpointManifest& manifest) {
  Json out = document(kFormat, kVersion);
  out["step"] = manifest.step;
  out["seed"] = std::to_string(manifest.seed);
  out["model"] = manifest.model;
  out["options"] = manifest.options;
  out["optimizer"] = Json{{"name", manifest.optimizer},    {"learning_rate", manifest.learning_rate},
                          {"momentum", manifest.momentum}, {"weight_decay", manifest.weight_decay},
                          {"beta1", manifest.beta1},       {"beta2", manifest.beta2},
                          {"epsilon", manifest.epsilon}};
  if (!manifest.optimizer_settings.empty()) out["optimizer"]["settings"] = manifest.optimizer_settings;
  out["data"] = manifest.data;
  out["samples"] = manifest.samples;
  out["microbatches"] = manifest.microbatches;
  out["microbatch_samples"] = manifest.microbatch_samples;
  if (manifest.loss_scale)
    out["loss_scale"] = Json{{"scale", *manifest.loss_scale}, {"steps", manifest.loss_scale_steps}};
  if (manifest.plateau) {
    Json& plateau = out["plateau"] = Json{{"factor", manifest.plateau->factor}};
    if (manifest.plateau->best) plateau["best"] = *manifest.plateau->best;
    plateau["waited"] = manifest.plateau->waited;
  }
  out["finite"] = manifest.finite;
  out["plan_hash"] = manifest.plan_hash;
  out["files"] = Json::array();
  for (const CheckpointFile& file : manifest.files) {
    out["files"].push_back(
        Json{{"name", file.name}, {"file_bytes", file.bytes.value}, {"crc32", crc_text(file.crc32)}});
  }
  if (!manifest.tensors.empty()) out["tensors"] = tensors_json(manifest);
  out["manifest_crc32"] = crc_text(manifest.manifest_crc32);
  if (manifest.provenance != Provenance{}) out["provenance"] = provenance_json(manifest.provenance);
  return dump(out);
}

std::string without_checksum(std::string text, std::uint32_t crc32) {
  const std::string written = "\"manifest_crc32\": \"" + crc_text(crc32) + '"';
  const std::size_t at = text.rfind(written);
  if (at != text.npos) text.replace(at, written.size(), "\"manifest_crc32\": \"" + crc_text(0) + '"');
  return text;
}

std::string entry_name(const std::string& tensor, const std::vector<std::int64_t>& shape, const TensorSlice& part) {
  return part == whole_slice(shape) ? tensor : tensor + slice_text(part);
}

std::string entry_text(const std::string& tensor, const std::vector<std::int64_t>& shape, const TensorSlice& part) {
  const Json out{{"tensor", tensor}, {"shape", shape}, {"begin", part.begin}};
  // The header's writer refuses names that are not UTF-8.
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void add_tensors(CheckpointManifest& manifest, const std::string& file, const SafetensorsHeader& header,
                 const std::string& path) {
  for (const auto& [entry, value] : header.tensors) {
    std::string name = entry;
    SavedTensor tensor{value.dtype, value.shape, {}};
    TensorSlice part = whole_slice(value.shape);
    if (const auto text = header.metadata.find(entry); text != header.metadata.end()) {
      const std::string place = path + ": metadata of \"" + entry + '"';
      const Json json = parse_document(text->second, place);
      Fields fields(Cursor(json, place));
      name = fields.required("tensor").text();
      tensor.shape = read_indices(fields.required("shape"), value.shape);
      part.begin = read_indices(fields.required("begin"), value.shape);
      fields.done();
    }
    SavedTensor& of_all = manifest.tensors.try_emplace(name, tensor).first->second;
    if (of_all.dtype != tensor.dtype || of_all.shape != tensor.shape)
      throw FormatError(path + ": tensor \"" + name + "\" has another dtype or shape than in another file");
    of_all.pieces.push_back({file, part});
  }
}

}  // namespace stagecraft::format
