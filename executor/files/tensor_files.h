#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft::files {

/// A file of named tensors, open for reading; its first bytes identify its kind.
class TensorFile {
 public:
  virtual ~TensorFile() = default;
  [[nodiscard]] virtual const std::string& path() const = 0;
  /// All names, ascending.
  [[nodiscard]] virtual std::vector<std::string> names() const = 0;
  /// The tensor `name`, on the CPU, owning its memory. Throws FormatError naming file and tensor if it is missing
  /// (listing those present) and if the file was truncated.
  [[nodiscard]] virtual at::Tensor read(const std::string& name) const = 0;
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

/// Several files as one; a name may only appear in one of them.
class TensorFiles {
 public:
  /// Throws FormatError as open_tensor_file does, and naming tensor and files for a name that appears twice.
  explicit TensorFiles(const std::vector<std::string>& paths);

  /// Gives the tensor `name` another name; a tensor that had it is gone.
  void rename(const std::string& name, const std::string& other);
  [[nodiscard]] bool holds(const std::string& name) const { return place_of_.contains(name); }
  /// All names, ascending.
  [[nodiscard]] std::vector<std::string> names() const;
  /// The file that holds `name`, else the first; for messages.
  [[nodiscard]] const std::string& path_of(const std::string& name) const;
  /// Throws FormatError as TensorFile::read.
  [[nodiscard]] at::Tensor read(const std::string& name) const;

 private:
  std::vector<std::unique_ptr<TensorFile>> files_;
  /// A tensor's file, and its name there.
  struct Place {
    std::size_t file = 0;
    std::string name;
  };
  std::map<std::string, Place> place_of_;
};

}  // namespace stagecraft::files
