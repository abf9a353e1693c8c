#include "executor/files/tensor_files.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/safetensors_header.h"
#include "costmodel/index.h"
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

std::string kind_text(const TensorKind& kind) {
  return fmt::format("{} [{}]", c10::toString(kind.dtype), fmt::join(kind.shape, ", "));
}

TensorKind kind_of(const at::Tensor& tensor) { return {tensor.scalar_type(), tensor.sizes().vec()}; }

at::Tensor narrowed(const at::Tensor& tensor, const TensorSlice& part) {
  at::Tensor out = tensor;
  for (std::size_t d = 0; d < part.shape.size(); ++d)
    out = out.narrow(static_cast<std::int64_t>(d), part.begin[d], part.shape[d]);
  return out;
}

std::vector<TensorSlice> slices_of_memory(const at::Tensor& tensor, std::int64_t first, std::int64_t count) {
  if (count == tensor.numel()) return {whole_slice(tensor.sizes().vec())};
  std::vector<std::size_t> order(to_index(tensor.dim()));  // of the dimensions, outermost first
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto stride = [&](std::size_t d) { return tensor.stride(to_int(d)); };
  std::ranges::stable_sort(order, std::greater<>(), stride);
  std::vector<std::int64_t> shape;
  for (const std::size_t d : order) shape.push_back(tensor.size(to_int(d)));
  std::vector<TensorSlice> out = slices_of_range(shape, first, count);
  for (TensorSlice& slice : out) {
    const TensorSlice ordered = slice;
    for (std::size_t d = 0; d < order.size(); ++d) {
      slice.begin[order[d]] = ordered.begin[d];
      slice.shape[order[d]] = ordered.shape[d];
    }
  }
  return out;
}

at::Tensor part_of_memory(const at::Tensor& values, std::int64_t first, const TensorSlice& part,
                          const at::Tensor& like) {
  std::int64_t begin = values.storage_offset() - first;
  for (std::size_t d = 0; d < part.begin.size(); ++d) begin += part.begin[d] * like.stride(to_int(d));
  return values.as_strided(part.shape, like.strides(), begin);
}

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

at::Tensor TensorFile::read(const std::string& name) const {
  const std::optional<TensorKind> found = kind(name);
  if (!found) throw FormatError(ErrorKind::UnknownName, path() + ": " + unknown_name("tensor", name, names()));
  return read_part(name, whole_slice(found->shape));
}

TensorFiles::TensorFiles(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) open(path);
}

TensorFiles::TensorFiles(const std::string& folder, const format::CheckpointManifest& manifest) {
  if (manifest.tensors.empty()) {
    for (const format::CheckpointFile& file : manifest.files) open(folder + "/" + file.name);
    return;
  }
  std::map<std::string, std::size_t> number_of;
  std::vector<std::set<std::string>> left;
  for (const format::CheckpointFile& file : manifest.files) {
    number_of.emplace(file.name, files_.size());
    files_.push_back(open_tensor_file(folder + "/" + file.name));
    const std::vector<std::string> names = files_.back()->names();
    left.emplace_back(names.begin(), names.end());
  }
  for (const auto& [name, saved] : manifest.tensors) {
    Tensor& tensor = tensors_[name];
    tensor.kind = {safetensors_type(saved.dtype), saved.shape};
    for (const format::TensorPiece& piece : saved.pieces) {
      const std::size_t file = number_of.at(piece.file);
      const std::string entry = format::entry_name(name, saved.shape, piece.part);
      const TensorKind wanted{tensor.kind.dtype, piece.part.shape};
      const std::optional<TensorKind> found = files_[file]->kind(entry);
      if (found != wanted) {
        throw FormatError(
            ErrorKind::DamagedCheckpoint,
            fmt::format("{}/manifest.json: tensor \"{}\": found {} as \"{}\" in {}, expected {}", folder, name,
                        found ? kind_text(*found) : "nothing", entry, piece.file, kind_text(wanted)));
      }
      left[file].erase(entry);
      tensor.pieces.push_back({file, entry, piece.part});
    }
  }
  for (std::size_t file = 0; file < left.size(); ++file) {
    if (left[file].empty()) continue;
    throw FormatError(ErrorKind::DamagedCheckpoint,
                      fmt::format("{}/manifest.json: does not list tensor \"{}\", which is in {}", folder,
                                  *left[file].begin(), manifest.files[file].name));
  }
}

void TensorFiles::open(const std::string& path) {
  files_.push_back(open_tensor_file(path));
  const TensorFile& file = *files_.back();
  for (const std::string& name : file.names()) {
    TensorKind kind = *file.kind(name);
    const FilePiece whole{files_.size() - 1, name, whole_slice(kind.shape)};
    const auto [it, fresh] = tensors_.emplace(name, Tensor{std::move(kind), {whole}});
    if (!fresh) throw FormatError(path + ": tensor \"" + name + "\" is also in " + path_of(name));
  }
}

void TensorFiles::rename(const std::string& name, const std::string& other) {
  auto moved = tensors_.extract(name);
  tensors_.insert_or_assign(other, std::move(moved.mapped()));
}

std::vector<std::string> TensorFiles::names() const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors_) out.push_back(name);
  return out;
}

const TensorFiles::Tensor& TensorFiles::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) throw FormatError(files_.at(0)->path() + ": " + unknown_name("tensor", name, names()));
  return it->second;
}

const TensorKind& TensorFiles::kind(const std::string& name) const { return find(name).kind; }

const std::string& TensorFiles::path_of(const std::string& name) const {
  const auto it = tensors_.find(name);
  return files_.at(it == tensors_.end() ? 0 : it->second.pieces.front().file)->path();
}

at::Tensor TensorFiles::read(const std::string& name, const TensorSlice& part) const {
  const Tensor& tensor = find(name);
  if (!is_inside(part, tensor.kind.shape)) {
    throw std::invalid_argument(fmt::format("{}: tensor \"{}\": {} is not inside {}", path_of(name), name,
                                            slice_text(part), slice_text(whole_slice(tensor.kind.shape))));
  }
  // `of` with indices that begin where `in` does.
  const auto within = [](TensorSlice of, const TensorSlice& in) {
    std::ranges::transform(of.begin, in.begin, of.begin.begin(), std::minus());
    return of;
  };
  const auto read = [&](const FilePiece& piece, const TensorSlice& common) {
    return files_[piece.file]->read_part(piece.name, within(common, piece.part));
  };
  for (const FilePiece& piece : tensor.pieces) {
    if (common_part(piece.part, part) == part) return read(piece, part);
  }
  at::Tensor out = at::empty(part.shape, at::TensorOptions(tensor.kind.dtype));
  for (const FilePiece& piece : tensor.pieces) {
    const TensorSlice common = common_part(piece.part, part);
    if (element_count(common.shape) > 0) narrowed(out, within(common, part)).copy_(read(piece, common));
  }
  return out;
}

at::Tensor TensorFiles::read_memory(const std::string& name, const at::Tensor& like, std::int64_t first,
                                    std::int64_t count) const {
  at::Tensor out = at::empty({count}, kind(name).dtype);
  for (const TensorSlice& part : slices_of_memory(like, first, count))
    part_of_memory(out, first, part, like).copy_(read(name, part));
  return out;
}

}  // namespace stagecraft::files
