#include "costmodel/format/checkpoint_manifest.h"

#include <charconv>
#include <cstdio>
#include <set>

#include "costmodel/format/cursor.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

constexpr const char* kFormat = "stagecraft.checkpoint";
constexpr int kVersion = 5;
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

}  // namespace stagecraft::format
