#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "executor/files/tensor_files.h"
#include "executor/files/zip_archive.h"

namespace stagecraft::files {

/// A tensor as a state dict describes it: a view of a storage, which is another record of the file.
struct PickledTensor {
  std::string storage;  ///< its record is called data/STORAGE
  at::ScalarType dtype = at::kFloat;
  std::int64_t storage_values = 0;
  std::int64_t offset = 0;  ///< of the first value, in values
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in values, not negative
  friend bool operator==(const PickledTensor&, const PickledTensor&) = default;
};

/// The tensors of a state dict that torch.save pickled, by name: of the dict itself, or of the dict under its key
/// "state_dict" or "model"; entries "_extra_state", whatever a module's get_extra_state returned, are left out. The
/// pickle is not executed: classes and functions are looked up in a list of those that state dicts need, and only
/// represent their results. Every tensor is within its storage and has at most as many values. Throws FormatError that
/// begins with `file` for anything else, with the position in the pickle, what was found and what was expected.
[[nodiscard]] std::map<std::string, PickledTensor> parse_state_dict(const std::string& pickle, const std::string& file);

/// Whether the file begins as a zip archive does. Throws FormatError with the path and the system's reason if it cannot
/// be read.
[[nodiscard]] bool is_zip_file(const std::string& path);

/// A state dict that torch.save wrote (PyTorch 1.6 and later, .pt or .pth), see parse_state_dict. Opening reads only
/// the pickle, `read_part` one storage.
class TorchFile : public TensorFile {
 public:
  /// Throws FormatError as parse_state_dict does, for an archive that is damaged or not from torch.save, and naming a
  /// tensor whose storage is missing or has the wrong size.
  explicit TorchFile(const std::string& path);

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] std::vector<std::string> names() const override;
  [[nodiscard]] std::optional<TensorKind> kind(const std::string& name) const override;
  /// Contiguous, whatever the strides in the file are. Throws FormatError, also for a storage whose checksum is not the
  /// archive's.
  [[nodiscard]] at::Tensor read_part(const std::string& name, const TensorSlice& part) const override;

 private:
  [[nodiscard]] const ZipRecord* find(const std::string& name) const;
  [[nodiscard]] std::string bytes_of(const ZipRecord& record) const;

  std::string path_;
  ZipArchive archive_;
  std::string folder_;  ///< of all records, with its slash
  std::map<std::string, PickledTensor> tensors_;
};

}  // namespace stagecraft::files
