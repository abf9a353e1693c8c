#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "executor/files/tensor_files.h"
#include "executor/files/torch_pickle.h"
#include "executor/files/zip_archive.h"

namespace stagecraft::files {

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
