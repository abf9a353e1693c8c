#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "executor/files/tensor_files.h"
#include "executor/files/torch_pickle.h"

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace stagecraft {

/// Whether the file begins as a zip archive does. Throws FormatError with the path and the system's reason if it cannot
/// be read.
[[nodiscard]] bool is_zip_file(const std::string& path);

/// A state dict that torch.save wrote (PyTorch 1.6 and later, .pt or .pth), see parse_state_dict. Opening reads the
/// pickle alone, `read` one storage.
class TorchFile : public TensorFile {
 public:
  /// Throws FormatError as parse_state_dict does, for an archive that is damaged or not of torch.save, and naming a
  /// tensor whose storage is not there with the bytes that it should have.
  explicit TorchFile(const std::string& path);
  ~TorchFile() override;

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] std::vector<std::string> names() const override;
  /// Contiguous, whatever the strides in the file are. Throws FormatError, also for a storage whose checksum is not the
  /// archive's.
  [[nodiscard]] at::Tensor read(const std::string& name) const override;

 private:
  std::string path_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> archive_;
  std::map<std::string, PickledTensor> tensors_;
};

}  // namespace stagecraft
