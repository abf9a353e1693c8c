#include "executor/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
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

}  // namespace stagecraft::checkpoint
