#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/format/safetensors_header.h"
#include "executor/files/tensor_files.h"

namespace stagecraft::files {

/// "F32", "I64", ...: the safetensors name of an element type, if there is one.
[[nodiscard]] std::optional<std::string> safetensors_word(at::ScalarType dtype);
/// The element type of one of safetensors_dtypes(). Throws std::invalid_argument for another word.
[[nodiscard]] at::ScalarType safetensors_type(const std::string& word);

/// Tensors by their full names.
using NamedTensors = std::map<std::string, at::Tensor>;

/// Size and checksum of a file.
struct FileDigest {
  Bytes bytes;
  std::uint32_t crc32 = 0;  ///< as in zlib
  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

/// Reads the whole file. Throws FormatError with the path and the system's reason.
[[nodiscard]] FileDigest file_digest(const std::string& path);

/// CRC-32 of `text`, as in zlib.
[[nodiscard]] std::uint32_t crc32_of(const std::string& text);

/// A safetensors file, open for reading. Opening reads only the header, `read_part` only that part.
class SafetensorsFile : public TensorFile {
 public:
  /// Throws FormatError as parse_safetensors_header does, for a header longer than the file or the format allows, and
  /// with the system's reason.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile() override;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] std::vector<std::string> names() const override;
  [[nodiscard]] const format::SafetensorsHeader& header() const { return header_; }
  [[nodiscard]] std::optional<TensorKind> kind(const std::string& name) const override;
  [[nodiscard]] at::Tensor read_part(const std::string& name, const TensorSlice& part) const override;

 private:
  std::string path_;
  int descriptor_ = -1;
  format::SafetensorsHeader header_;
  std::int64_t data_begin_ = 0;
};

/// Whether such files can hold tensors of `dtype`.
[[nodiscard]] bool safetensors_hold(at::ScalarType dtype);

/// Writes `tensors` (of any device; their values, without autograd state) to `path`: to a temporary file next to it,
/// synced, then renamed, so that a reader never sees half a file. The same bytes for the same values: tensors with
/// larger values first, then by name. Throws FormatError with the path and the system's reason, the old file is then
/// unchanged; std::invalid_argument naming a tensor whose dtype the format does not support.
FileDigest write_safetensors(const std::string& path, const NamedTensors& tensors,
                             const std::map<std::string, std::string>& metadata = {});

/// Makes files created, renamed or removed in folder `path` survive a crash. Throws FormatError.
void sync_directory(const std::string& path);

}  // namespace stagecraft::files
