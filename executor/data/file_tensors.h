#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/model/model.h"

namespace stagecraft::data {

/// A tensor in a file, mapped or read.
struct FileTensor {
  std::string path;  ///< for messages
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::optional<int> sample_axis;     ///< absent: the same for all samples
  std::shared_ptr<const void> owner;  ///< of the values
  void* values = nullptr;             ///< in C order; perhaps unaligned

  /// The values as bytes in this shape with one more axis, of the bytes of a value.
  [[nodiscard]] at::Tensor bytes(std::vector<std::int64_t> as) const;
};

/// The tensor in a NumPy file, mapped, without an axis of samples. Throws as files::parse_npy_header does.
[[nodiscard]] FileTensor open_npy(const std::string& path);

/// The tensor of each input, in their order, from `path`: a safetensors file, a folder with NAME.npy for each, a list
/// NAME=FILE.npy,... of them, or Parquet or Arrow files (files::has_columns) with a column for each. A column's
/// integers are converted to the input's type if they fit, its floating-point numbers to the input's precision; rows
/// that are lists of as many numbers as a sample has take the sample's shape. Otherwise types and shapes are those of
/// the files. Messages name `kind`. Throws FormatError for a missing tensor, listing those present, and a damaged file.
[[nodiscard]] std::vector<FileTensor> open_tensors(const std::string& kind, const std::string& path,
                                                   const std::vector<model::ModelInput>& inputs);

/// The first million of integers of which one is outside [least, end): where they begin, and their values as int64.
/// `bytes` has two axes: the integers of this type, and the bytes of each. Absent if all are inside.
[[nodiscard]] std::optional<std::pair<std::int64_t, at::Tensor>> values_outside(const at::Tensor& bytes,
                                                                                at::ScalarType type, std::int64_t least,
                                                                                std::int64_t end);

/// Throws FormatError for a file of tables or arrays that no source reads, such as .csv: says which it should be.
void refuse_other_formats(const std::string& path);

/// The files that open_tensors reads.
[[nodiscard]] std::vector<std::string> tensor_files(const std::string& kind, const std::string& path);

}  // namespace stagecraft::data
