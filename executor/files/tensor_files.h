#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/format/checkpoint_manifest.h"
#include "costmodel/slice.h"

namespace stagecraft::files {

/// The type and shape of a tensor in a file.
struct TensorKind {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  friend bool operator==(const TensorKind&, const TensorKind&) = default;
};

/// "Float [16, 12]"
[[nodiscard]] std::string kind_text(const TensorKind& kind);
[[nodiscard]] TensorKind kind_of(const at::Tensor& tensor);

/// The view of a part of `tensor`.
[[nodiscard]] at::Tensor narrowed(const at::Tensor& tensor, const TensorSlice& part);

/// The parts of `tensor`, which has no overlaps and no gaps, that hold values [first, first + count) in the order of
/// its memory, as slices_of_range gives them.
[[nodiscard]] std::vector<TensorSlice> slices_of_memory(const at::Tensor& tensor, std::int64_t first,
                                                        std::int64_t count);
/// Of a tensor like `like`, the `part` among `values`: a range of them in the order of that memory, from `first` on.
/// All of it must be one of slices_of_memory.
[[nodiscard]] at::Tensor part_of_memory(const at::Tensor& values, std::int64_t first, const TensorSlice& part,
                                        const at::Tensor& like);

/// A file of named tensors, open for reading; its first bytes identify its kind.
class TensorFile {
 public:
  virtual ~TensorFile() = default;
  [[nodiscard]] virtual const std::string& path() const = 0;
  /// All names, ascending.
  [[nodiscard]] virtual std::vector<std::string> names() const = 0;
  /// Of the tensor `name`, if the file holds it.
  [[nodiscard]] virtual std::optional<TensorKind> kind(const std::string& name) const = 0;
  /// Part of the tensor `name`, on the CPU, owning its memory; the file must hold it. Throws FormatError naming file
  /// and tensor if the file was truncated.
  [[nodiscard]] virtual at::Tensor read_part(const std::string& name, const TensorSlice& part) const = 0;
  /// All of the tensor `name`. Throws FormatError as read_part, and if it is missing, listing those present.
  [[nodiscard]] at::Tensor read(const std::string& name) const;
};

/// Opens a safetensors file, or one that torch.save wrote. Throws FormatError as their constructors do.
[[nodiscard]] std::unique_ptr<TensorFile> open_tensor_file(const std::string& path);

/// The files of tensors that `path` means: itself; the shards beside it, if it is an index as transformers writes them
/// (.index.json); in a folder, those of model.safetensors.index.json or pytorch_model.bin.index.json, else
/// model.safetensors or pytorch_model.bin, the first that exists. Throws FormatError if a folder has none of these, and
/// for a broken index.
[[nodiscard]] std::vector<std::string> tensor_file_paths(const std::string& path);

/// Whether `path` is a folder with one of these files.
[[nodiscard]] bool is_weights_folder(const std::string& path);

/// Several files as one.
class TensorFiles {
 public:
  /// Each tensor is whole in one of the files. Throws FormatError as open_tensor_file does, and naming tensor and files
  /// for a name that appears twice.
  explicit TensorFiles(const std::vector<std::string>& paths);
  /// The tensors of the checkpoint in `folder`, in the pieces that its manifest lists. Throws FormatError as above, and
  /// naming manifest, tensor and file for a piece that is not in its file as the manifest says, or a tensor of a file
  /// that the manifest does not list.
  TensorFiles(const std::string& folder, const format::CheckpointManifest& manifest);

  /// Gives the tensor `name` another name; a tensor that had it is gone.
  void rename(const std::string& name, const std::string& other);
  [[nodiscard]] bool holds(const std::string& name) const { return tensors_.contains(name); }
  /// All names, ascending.
  [[nodiscard]] std::vector<std::string> names() const;
  /// Throws FormatError naming the tensors that there are, if `name` is none.
  [[nodiscard]] const TensorKind& kind(const std::string& name) const;
  /// The file that holds the first piece of `name`, else the first; for messages.
  [[nodiscard]] const std::string& path_of(const std::string& name) const;
  /// The tensor `name`, or a part of it, put together from the pieces that have elements of it; of these only what is
  /// in the part is read. Throws FormatError as TensorFile::read, std::invalid_argument for a part outside the tensor.
  [[nodiscard]] at::Tensor read(const std::string& name) const { return read(name, whole_slice(kind(name).shape)); }
  [[nodiscard]] at::Tensor read(const std::string& name, const TensorSlice& part) const;
  /// Values [first, first + count) of the tensor `name` in the order of the memory of `like`, which has its shape and
  /// dtype, as a vector; read as above.
  [[nodiscard]] at::Tensor read_memory(const std::string& name, const at::Tensor& like, std::int64_t first,
                                       std::int64_t count) const;

 private:
  /// Part of a tensor: its file, and its name there.
  struct FilePiece {
    std::size_t file = 0;
    std::string name;
    TensorSlice part;
  };
  struct Tensor {
    TensorKind kind;
    std::vector<FilePiece> pieces;
  };
  void open(const std::string& path);
  [[nodiscard]] const Tensor& find(const std::string& name) const;

  std::vector<std::unique_ptr<TensorFile>> files_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace stagecraft::files
