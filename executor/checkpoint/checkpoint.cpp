#include "executor/checkpoint/checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/text/number.h"

namespace stagecraft::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kPrefix = "step-";
constexpr const char* kPartial = ".partial";
constexpr const char* kAverage = "optimizer.average/";
constexpr const char* kMaster = "optimizer.master/";
/// The prefix of each tensor of a parameter's state, and whether it is a scalar instead of like the parameter.
struct StatePart {
  const char* prefix;
  at::Tensor stage::OptimizerState::* tensor;
  bool scalar = false;
};
constexpr std::array kState{StatePart{"optimizer.first/", &stage::OptimizerState::first},
                            StatePart{"optimizer.second/", &stage::OptimizerState::second},
                            StatePart{"optimizer.third/", &stage::OptimizerState::third},
                            StatePart{"optimizer.steps/", &stage::OptimizerState::steps, true},
                            StatePart{"optimizer.product/", &stage::OptimizerState::product, true},
                            StatePart{kAverage, &stage::OptimizerState::average},
                            StatePart{kMaster, &stage::OptimizerState::master}};
/// Suffix of a count that PyTorch's batch norm keeps but rarely needs.
constexpr const char* kTracked = ".num_batches_tracked";

/// The step of a folder's name "step-N", as this program writes it.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string digits = name.substr(std::string(kPrefix).size());
  const std::optional<std::int64_t> step = number_in<std::int64_t>(digits);
  return step && *step >= 0 && std::to_string(*step) == digits ? step : std::nullopt;
}

[[noreturn]] void fail(const std::string& path, const std::string& what, const std::error_code& reason) {
  throw FormatError(what == "read" ? ErrorKind::CannotRead : ErrorKind::CannotWrite,
                    path + ": cannot " + what + ": " + reason.message());
}

/// Names in `folder`; none if it does not exist.
std::vector<std::string> entries(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> out;
  if (!fs::exists(folder, error) && !error) return out;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    out.push_back(it->path().filename().string());
  if (error) fail(folder, "read", error);
  return out;
}

/// Manifest first, so that half a checkpoint never looks complete.
void remove_checkpoint(const std::string& path) {
  std::error_code error;
  fs::remove(path + "/" + kManifest, error);
  if (!error) fs::remove_all(path, error);
  if (error) fail(path, "remove", error);
}

/// The manifest at `path` (DIR/step-N), whose own checksum is correct.
format::CheckpointManifest read_manifest(const std::string& path) {
  const std::string name = path + "/" + kManifest;
  const std::string text = format::read_text(name);
  format::CheckpointManifest manifest = format::parse_checkpoint(text, name);
  const std::uint32_t found = files::crc32_of(format::without_checksum(text, manifest.manifest_crc32));
  if (found != manifest.manifest_crc32) {
    throw FormatError(ErrorKind::DamagedCheckpoint,
                      fmt::format("{}: /manifest_crc32: found {:08x}, expected {:08x} for this document", name,
                                  manifest.manifest_crc32, found));
  }
  if (step_of(fs::path(path).filename().string()) != manifest.step)
    throw FormatError(ErrorKind::DamagedCheckpoint,
                      fmt::format("{}: /step: found {}, which does not match the folder", name, manifest.step));
  return manifest;
}

/// Dtypes that may stand for each other; null: none.
using Accepted = bool (*)(at::ScalarType);
bool kept(at::ScalarType type) { return type == at::kFloat || type == at::kBFloat16; }

/// Refuses a tensor `name` that has not the shape of `like`, and its dtype or one that is `accepted` for it.
void check_kind(const files::TensorFiles& files, const std::string& name, const files::TensorKind& like,
                Accepted accepted) {
  const files::TensorKind& found = files.kind(name);
  const bool dtype = found.dtype == like.dtype || (accepted && accepted(like.dtype) && accepted(found.dtype));
  if (!dtype || found.shape != like.shape) {
    throw FormatError(ErrorKind::OtherCheckpoint, files.path_of(name) + ": tensor \"" + name + "\": found " +
                                                      files::kind_text(found) + ", expected " + files::kind_text(like));
  }
}

/// The tensor `name`, checked.
at::Tensor read_like(const files::TensorFiles& files, const std::string& name, const files::TensorKind& like,
                     Accepted accepted) {
  check_kind(files, name, like, accepted);
  return files.read(name);
}

void load_values(const files::TensorFiles& files, const std::vector<stage::Parameter>& values, Accepted accepted) {
  const at::NoGradGuard no_graph;
  for (const stage::Parameter& value : values) {
    if (files.holds(value.name))
      at::Tensor(value.value).copy_(read_like(files, value.name, files::kind_of(value.value), accepted));
  }
}

std::vector<std::string> state_names(const std::string& parameter, const stage::OptimizerOptions& optimizer) {
  const stage::OptimizerKeeps keeps = stage::keeps(optimizer);
  const std::array has{keeps.tensors > 0, keeps.tensors > 1, keeps.tensors > 2, keeps.steps, keeps.product};
  std::vector<std::string> out;
  for (std::size_t i = 0; i < has.size(); ++i) {
    if (has[i]) out.push_back(kState[i].prefix + parameter);
  }
  return out;
}

void check_against(const files::TensorFiles& files, const std::set<std::string>& known,
                   const std::vector<std::string>& missing) {
  for (const std::string& name : files.names()) {
    if (!known.contains(name))
      throw FormatError(ErrorKind::OtherCheckpoint,
                        files.path_of(name) + ": " + unknown_name("tensor", name, {known.begin(), known.end()}));
  }
  if (missing.empty()) return;
  throw FormatError(ErrorKind::OtherCheckpoint,
                    fmt::format("{}: tensor \"{}\" is missing{}", files.path_of(missing.front()), missing.front(),
                                missing.size() == 1 ? "" : fmt::format(", and {} more", missing.size() - 1)));
}

}  // namespace

std::string checkpoint_path(const std::string& folder, std::int64_t step) {
  return (fs::path(folder) / (kPrefix + std::to_string(step))).string();
}

std::string partial_path(const std::string& folder, std::int64_t step) {
  return checkpoint_path(folder, step) + kPartial;
}

std::vector<std::int64_t> checkpoint_steps(const std::string& folder) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : entries(folder)) {
    const auto step = step_of(name);
    std::error_code error;
    if (step && fs::exists(fs::path(folder) / name / kManifest, error)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

format::CheckpointManifest check_checkpoint(const std::string& path) {
  format::CheckpointManifest manifest = read_manifest(path);
  for (const format::CheckpointFile& file : manifest.files) {
    const std::string place = path + "/" + file.name;
    const files::FileDigest found = files::file_digest(place);
    if (found.bytes != file.bytes)
      throw FormatError(ErrorKind::DamagedCheckpoint, fmt::format("{}: found {} bytes, the manifest says {}", place,
                                                                  found.bytes.value, file.bytes.value));
    if (found.crc32 != file.crc32)
      throw FormatError(ErrorKind::DamagedCheckpoint, fmt::format("{}: found checksum {:08x}, the manifest says {:08x}",
                                                                  place, found.crc32, file.crc32));
  }
  return manifest;
}

std::optional<FoundCheckpoint> latest_checkpoint(const std::string& folder,
                                                 const std::function<void(const std::string&)>& tell) {
  std::vector<std::int64_t> steps = checkpoint_steps(folder);
  std::ranges::reverse(steps);
  for (const std::int64_t step : steps) {
    const std::string path = checkpoint_path(folder, step);
    try {
      FoundCheckpoint found{path, check_checkpoint(path)};
      if (found.manifest.finite) return found;
      tell(path + " is skipped: it contains infinities or NaNs");
    } catch (const FormatError& e) { tell(fmt::format("skipping damaged checkpoint {}: {}", path, e.what())); }
  }
  return std::nullopt;
}

FoundCheckpoint checkpoint_at(const std::string& path, const std::function<void(const std::string&)>& tell) {
  std::error_code error;
  if (fs::exists(fs::path(path) / kManifest, error)) {
    // "DIR/step-8/" has no file name.
    const std::string folder = fs::path(path).has_filename() ? path : fs::path(path).parent_path().string();
    FoundCheckpoint found{folder, check_checkpoint(folder)};
    if (!found.manifest.finite) tell(folder + " contains infinities or NaNs");
    return found;
  }
  if (!fs::is_directory(path, error))
    throw FormatError(ErrorKind::NoCheckpoint, path + ": is not a folder of checkpoints, nor a checkpoint in one");
  if (std::optional<FoundCheckpoint> found = latest_checkpoint(path, tell)) return *found;
  throw FormatError(ErrorKind::NoCheckpoint, path + ": no complete checkpoint");
}

std::vector<std::string> file_paths(const FoundCheckpoint& checkpoint) {
  std::vector<std::string> out;
  for (const format::CheckpointFile& file : checkpoint.manifest.files) out.push_back(checkpoint.path + "/" + file.name);
  return out;
}

std::vector<std::int64_t> finite_checkpoints(const std::string& folder, std::int64_t last) {
  std::vector<std::int64_t> out;
  for (const std::int64_t step : checkpoint_steps(folder)) {
    if (step > last) break;
    try {
      if (read_manifest(checkpoint_path(folder, step)).finite) out.push_back(step);
    } catch (const FormatError&) {}  // damaged: ignored
  }
  return out;
}

void check_checkpoint_folder(const std::string& folder, bool resume) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(folder, "write", error);
  format::check_can_write(folder + "/" + kManifest);
  const std::vector<std::int64_t> steps = checkpoint_steps(folder);
  if (resume || steps.empty()) return;
  throw InputError(
      ErrorKind::CheckpointExists,
      checkpoint_path(folder, steps.back()) + " already exists; continue from it with --resume, or use another folder");
}

std::string begin_checkpoint(const std::string& folder, std::int64_t step) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(folder, "write", error);
  for (const std::string& name : entries(folder)) {
    const fs::path place = fs::path(folder) / name;
    const bool partial =
        name.ends_with(kPartial) && step_of(name.substr(0, name.size() - std::string(kPartial).size()));
    const bool headless = step_of(name) && !fs::exists(place / kManifest, error);
    if (partial || headless) remove_checkpoint(place.string());
  }
  const std::string partial = partial_path(folder, step);
  fs::create_directory(partial, error);
  if (error) fail(partial, "write", error);
  return partial;
}

std::string part_name(int rank) { return fmt::format("part-{}.safetensors", rank); }

format::CheckpointFile write_pieces(const std::string& partial, int rank, const std::vector<StatePiece>& pieces) {
  const std::string name = part_name(rank);
  files::NamedTensors tensors;
  std::map<std::string, std::string> metadata;
  for (const StatePiece& piece : pieces) {
    const std::string entry = format::entry_name(piece.tensor, piece.shape, piece.part);
    if (!tensors.emplace(entry, piece.values).second)
      throw std::invalid_argument(fmt::format("{}/{}: two pieces are named \"{}\"", partial, name, entry));
    if (entry != piece.tensor) metadata[entry] = format::entry_text(piece.tensor, piece.shape, piece.part);
  }
  const files::FileDigest digest = files::write_safetensors(partial + "/" + name, tensors, metadata);
  return {name, digest.bytes, digest.crc32};
}

void commit_checkpoint(const std::string& folder, const format::CheckpointManifest& manifest,
                       const std::vector<std::int64_t>& keep) {
  const std::string path = checkpoint_path(folder, manifest.step);
  const std::string partial = partial_path(folder, manifest.step);
  format::CheckpointManifest checked = manifest;
  checked.tensors.clear();
  std::error_code error;
  for (const format::CheckpointFile& file : manifest.files) {
    const std::string place = partial + "/" + file.name;
    const auto bytes = fs::file_size(place, error);
    if (error) fail(place, "read what was written; all ranks must share the folder", error);
    if (static_cast<std::int64_t>(bytes) != file.bytes.value)
      throw FormatError(ErrorKind::DamagedCheckpoint,
                        fmt::format("{}: found {} bytes, expected {}", place, bytes, file.bytes.value));
    format::add_tensors(checked, file.name, files::SafetensorsFile(place).header(), place);
  }
  checked.manifest_crc32 = 0;
  checked.manifest_crc32 = files::crc32_of(format::checkpoint_json(checked));
  const std::string text = format::checkpoint_json(checked);
  (void)format::parse_checkpoint(text, partial + "/" + kManifest);  // refuses pieces that leave a gap or overlap
  format::write_text(partial + "/" + kManifest, text);
  files::sync_directory(partial);
  // An existing one of the same step can only be damaged or not finite.
  if (fs::exists(path, error)) remove_checkpoint(path);
  fs::rename(partial, path, error);
  if (error) fail(path, "write", error);
  files::sync_directory(folder);
  for (const std::int64_t step : checkpoint_steps(folder)) {
    if (step != manifest.step && std::ranges::find(keep, step) == keep.end())
      remove_checkpoint(checkpoint_path(folder, step));
  }
}

stage::OptimizerOptions saved_optimizer(const format::CheckpointManifest& manifest) {
  stage::OptimizerOptions out;
  out.name = manifest.optimizer;
  out.momentum = manifest.momentum;
  out.amsgrad = manifest.optimizer_settings.contains("amsgrad");
  out.centered = manifest.optimizer_settings.contains("centered");
  // Whether it is kept, not how it moves.
  if (manifest.optimizer_settings.contains("ema-decay")) out.ema_decay = 0.5;
  if (const auto type = manifest.optimizer_settings.find("parameter-dtype"); type != manifest.optimizer_settings.end())
    out.types.parameters = state_type(type->second);
  return out;
}

void collect_state(stage::StageProgram& program, const stage::Optimizer& optimizer, const OwnedRanges& owned,
                   std::vector<StatePiece>& out) {
  const at::NoGradGuard no_graph;
  const std::vector<stage::Parameter>& parameters = program.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, layer, value] = parameters[i];
    const std::optional<ValueRange> range = owned(name, value.numel());
    if (!range) continue;
    const std::vector<std::int64_t> shape = value.sizes().vec();
    const std::vector<TensorSlice> parts = files::slices_of_memory(value, range->first, range->count);
    const auto add = [&](const std::string& prefix, const at::Tensor& values, std::int64_t first) {
      for (const TensorSlice& part : parts)
        out.push_back({prefix + name, shape, part, files::part_of_memory(values.detach(), first, part, value)});
    };
    add("", value, 0);
    const stage::OptimizerState state = optimizer.state(i);
    for (const StatePart& part : kState) {
      const at::Tensor& tensor = state.*part.tensor;
      if (!tensor.defined()) continue;
      if (!part.scalar) {
        add(part.prefix, tensor, stage::first_value(value, optimizer.parameters()[i]));
      } else if (range->first == 0 && (range->count > 0 || value.numel() == 0)) {
        out.push_back({part.prefix + name, {}, {}, tensor});
      }
    }
  }
  for (const stage::Parameter& buffer : program.buffers()) {
    if (!files::safetensors_hold(buffer.value.scalar_type())) continue;
    const std::optional<ValueRange> range = owned(buffer.name, buffer.value.numel());
    if (!range) continue;
    for (const TensorSlice& part : files::slices_of_memory(buffer.value, range->first, range->count))
      out.push_back({buffer.name, buffer.value.sizes().vec(), part, files::narrowed(buffer.value.detach(), part)});
  }
}

void load_state(const files::TensorFiles& files, stage::StageProgram& program, stage::Optimizer& optimizer) {
  const at::NoGradGuard no_graph;
  const std::vector<stage::Parameter>& parameters = program.parameters();
  load_values(files, program.buffers(), nullptr);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& value = parameters[i].value;
    const std::string& name = parameters[i].name;
    const at::Tensor& updated = optimizer.parameters()[i];
    const std::int64_t first = stage::first_value(value, updated);
    const files::TensorKind like = files::kind_of(value);
    const auto read = [&](const std::string& tensor, bool scalar) {
      check_kind(files, tensor, scalar ? files::TensorKind{at::kFloat, {}} : like, scalar ? nullptr : kept);
      const bool whole = scalar || updated.sizes() == value.sizes();
      return (whole ? files.read(tensor) : files.read_memory(tensor, value, first, updated.numel())).to(value.device());
    };
    stage::OptimizerState state;
    for (const StatePart& part : kState) {
      if (files.holds(part.prefix + name)) state.*part.tensor = read(part.prefix + name, part.scalar);
    }
    // Where a checkpoint has one of them alone, that of more bits is both.
    const bool has_master = files.holds(kMaster + name);
    const std::string& exact = has_master && like.dtype == at::kFloat ? kMaster + name : name;
    if (files.holds(exact)) at::Tensor(value).copy_(read_like(files, exact, like, kept));
    if (!has_master && files.holds(name) && files.kind(name).dtype == at::kFloat) state.master = read(name, false);
    optimizer.set_state(i, state);
  }
}

void load_weights(const files::TensorFiles& files, stage::StageProgram& program) {
  for (const auto& values : {program.parameters(), program.buffers()}) load_values(files, values, c10::isFloatingType);
}

void check_names(const files::TensorFiles& files, const model::Model& model, const stage::OptimizerOptions& optimizer) {
  const bool averages = stage::keeps(optimizer).average;
  const bool masters = optimizer.types.parameters != StateType::Float32;
  std::set<std::string> known;
  std::vector<std::string> missing;
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters) {
      if (parameter.constant || (!parameter.trainable && !files::safetensors_hold(parameter.dtype))) continue;
      if (!known.insert(parameter.name).second) continue;
      if (!files.holds(parameter.name)) missing.push_back(parameter.name);
      if (!parameter.trainable) continue;
      if (averages) {  // of every parameter, also of one that had no gradient yet
        known.insert(kAverage + parameter.name);
        if (!files.holds(kAverage + parameter.name)) missing.push_back(kAverage + parameter.name);
      }
      const std::vector<std::string> state = state_names(parameter.name, optimizer);
      known.insert(state.begin(), state.end());
      if (masters) known.insert(kMaster + parameter.name);
      const auto holds = [&](const std::string& name) { return files.holds(name); };
      if (std::ranges::none_of(state, holds)) continue;
      std::ranges::copy_if(state, std::back_inserter(missing), std::not_fn(holds));
      if (masters && !holds(kMaster + parameter.name)) missing.push_back(kMaster + parameter.name);
    }
  }
  check_against(files, known, missing);
}

bool use_averages(files::TensorFiles& files) {
  bool any = false;
  const std::string prefix = kAverage;
  for (const std::string& name : files.names()) {
    if (!name.starts_with(prefix)) continue;
    files.rename(name, name.substr(prefix.size()));
    any = true;
  }
  return any;
}

files::TensorFiles open_weights(const std::string& path, const model::Model& model, const TiedNames& tied) {
  files::TensorFiles out(files::tensor_file_paths(path));
  std::set<std::string> known;
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters) known.insert(parameter.name);
  }
  const auto fits = [&](const std::string& name) {
    return known.contains(name) || tied.contains(name) || name.ends_with(kTracked);
  };
  for (const std::string& name : out.names()) {
    std::string rest = name;
    const std::string compiled = "_orig_mod.";
    for (std::size_t at = 0; (at = rest.find(compiled)) != std::string::npos;) rest.erase(at, compiled.size());
    for (const std::string prefix : {"module.", "model."}) {
      if (!known.contains(rest) && !tied.contains(rest) && rest.starts_with(prefix)) rest.erase(0, prefix.size());
    }
    if (rest != name && fits(rest) && !out.holds(rest)) out.rename(name, rest);
  }
  for (const auto& [further, name] : tied) {
    if (out.holds(further) && !out.holds(name)) out.rename(further, name);
  }
  return out;
}

void check_weight_names(const files::TensorFiles& files, const model::Model& model, const TiedNames& tied) {
  std::set<std::string> known;
  std::vector<std::string> missing;
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters) {
      if (known.insert(parameter.name).second && parameter.trainable && !files.holds(parameter.name))
        missing.push_back(parameter.name);
    }
  }
  for (const std::string& name : files.names()) {
    if (name.ends_with(kTracked) || tied.contains(name)) known.insert(name);
  }
  check_against(files, known, missing);
  for (const auto& [further, name] : tied) {
    if (!files.holds(further) || !files.holds(name) || files.read(further).equal(files.read(name))) continue;
    throw FormatError(ErrorKind::OtherCheckpoint,
                      fmt::format("{}: tensors \"{}\" and \"{}\" differ; the model has one tensor with both names",
                                  files.path_of(further), further, name));
  }
}

files::NamedTensors state_dict(const files::TensorFiles& files, const model::Model& model, const TiedNames& tied) {
  files::NamedTensors out;
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters) {
      const std::string& name = parameter.name;
      if (parameter.constant || !parameter.in_state_dict || out.contains(name)) continue;
      if (!files::safetensors_hold(parameter.dtype)) {
        throw FormatError(
            ErrorKind::OtherCheckpoint,
            fmt::format("{}: layer \"{}\" has a buffer \"{}\" of type {}, which safetensors files cannot hold",
                        files.path_of(name), layer.name, name, c10::toString(parameter.dtype)));
      }
      out[name] = read_like(files, name, {parameter.dtype, parameter.shape}, parameter.trainable ? kept : nullptr);
    }
  }
  for (const auto& [further, name] : tied) {
    if (const auto found = out.find(name); found != out.end()) out[further] = found->second;
  }
  return out;
}

void check_can_save(const model::Model& model) {
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& buffer : layer.parameters) {
      if (buffer.trainable || files::safetensors_hold(buffer.dtype) || !(buffer.written || buffer.decay)) continue;
      throw std::invalid_argument(fmt::format(
          "layer \"{}\" writes its buffer \"{}\" of type {}, which checkpoints cannot store; run without --checkpoint",
          layer.name, buffer.name, c10::toString(buffer.dtype)));
    }
  }
}

}  // namespace stagecraft::checkpoint
