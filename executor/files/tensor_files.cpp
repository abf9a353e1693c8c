#include "executor/files/tensor_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/safetensors_header.h"
#include "executor/files/safetensors.h"
#include "executor/files/torch_file.h"

namespace stagecraft::files {
namespace {

constexpr std::array kWeights{"model.safetensors.index.json", "pytorch_model.bin.index.json", "model.safetensors",
                              "pytorch_model.bin"};

/// The first of kWeights in a folder, or its end.
const char* const* weights_in(const std::string& folder) {
  return std::ranges::find_if(
      kWeights, [&](const char* name) { return std::filesystem::exists(std::filesystem::path(folder) / name); });
}

}  // namespace

std::unique_ptr<TensorFile> open_tensor_file(const std::string& path) {
  if (is_zip_file(path)) return std::make_unique<TorchFile>(path);
  return std::make_unique<SafetensorsFile>(path);
}

std::vector<std::string> tensor_file_paths(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr const char* kIndex = ".index.json";
  std::string found = path;
  if (fs::is_directory(path)) {
    const auto* const name = weights_in(path);
    if (name == kWeights.end()) {
      throw FormatError(ErrorKind::CannotRead,
                        fmt::format("{}: has no weights, expected one of {} in it", path, fmt::join(kWeights, ", ")));
    }
    found = (fs::path(path) / *name).string();
  }
  if (!found.ends_with(kIndex)) return {found};
  std::vector<std::string> out;
  for (const std::string& shard : format::parse_shard_index(format::read_text(found), found))
    out.push_back((fs::path(found).parent_path() / shard).string());
  return out;
}

bool is_weights_folder(const std::string& path) {
  return std::filesystem::is_directory(path) && weights_in(path) != kWeights.end();
}

TensorFiles::TensorFiles(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    files_.push_back(open_tensor_file(path));
    for (const std::string& name : files_.back()->names()) {
      const auto [it, fresh] = place_of_.emplace(name, Place{files_.size() - 1, name});
      if (!fresh) throw FormatError(path + ": tensor \"" + name + "\" is also in " + files_[it->second.file]->path());
    }
  }
}

void TensorFiles::rename(const std::string& name, const std::string& other) {
  auto moved = place_of_.extract(name);
  place_of_.insert_or_assign(other, std::move(moved.mapped()));
}

std::vector<std::string> TensorFiles::names() const {
  std::vector<std::string> out;
  for (const auto& [name, place] : place_of_) out.push_back(name);
  return out;
}

const std::string& TensorFiles::path_of(const std::string& name) const {
  const auto it = place_of_.find(name);
  return files_.at(it == place_of_.end() ? 0 : it->second.file)->path();
}

at::Tensor TensorFiles::read(const std::string& name) const {
  const auto it = place_of_.find(name);
  if (it == place_of_.end()) throw FormatError(files_.at(0)->path() + ": " + unknown_name("tensor", name, names()));
  return files_[it->second.file]->read(it->second.name);
}

}  // namespace stagecraft::files
