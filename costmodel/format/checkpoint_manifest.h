#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/format/document_schema.h"
#include "costmodel/format/safetensors_header.h"
#include "costmodel/graph.h"
#include "costmodel/slice.h"
#include "costmodel/units.h"

namespace stagecraft::format {

/// A file of a checkpoint, next to the manifest.
struct CheckpointFile {
  std::string name;
  Bytes bytes;
  std::uint32_t crc32 = 0;  ///< of the complete file, as in zlib and PNG
  friend bool operator==(const CheckpointFile&, const CheckpointFile&) = default;
};

/// A part of a tensor, and the file that holds it; see entry_name.
struct TensorPiece {
  std::string file;
  TensorSlice part;
  friend bool operator==(const TensorPiece&, const TensorPiece&) = default;
};

/// A tensor of a checkpoint. Each of its elements is in exactly one piece.
struct SavedTensor {
  std::string dtype;  ///< one of safetensors_dtypes()
  std::vector<std::int64_t> shape;
  std::vector<TensorPiece> pieces;
  friend bool operator==(const SavedTensor&, const SavedTensor&) = default;
};

/// The state of a learning-rate schedule that follows the validation loss.
struct SavedPlateau {
  double factor = 1;           ///< on the learning rate
  std::optional<double> best;  ///< loss; absent before the first validation
  std::int64_t waited = 0;     ///< validations since then or since the last drop
  friend bool operator==(const SavedPlateau&, const SavedPlateau&) = default;
};

/// The content of a checkpoint besides its tensors' values. Only `plan_hash`, files and pieces depend on the plan.
struct CheckpointManifest {
  std::int64_t step = 0;  ///< steps done; the number of the next step
  std::uint64_t seed = 0;
  std::string model;
  std::map<std::string, std::string> options;  ///< Model::options
  std::string optimizer;
  double learning_rate = 0;
  double momentum = 0;
  double weight_decay = 0;
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  std::map<std::string, std::string> optimizer_settings;  ///< further ones that are not defaults, by name
  std::string data;                                       ///< the data source's name
  std::int64_t samples = 0;                               ///< seen so far: the data's position
  int microbatches = 1;
  std::int64_t microbatch_samples = 1;
  std::optional<double> loss_scale;     ///< for a run in float16
  std::int64_t loss_scale_steps = 0;    ///< without an overflow since the scale last changed
  std::optional<SavedPlateau> plateau;  ///< with the schedule "plateau"
  std::string plan_hash;                ///< for information
  bool finite = true;                   ///< no parameter, buffer or optimizer state is infinite or not a number
  std::vector<CheckpointFile> files;
  std::map<std::string, SavedTensor> tensors;  ///< by name; before version 6 none: each is whole in one of the files
  std::uint32_t manifest_crc32 = 0;  ///< of the document with 0 here; the reader does not compare it, the caller does
  Provenance provenance;
  friend bool operator==(const CheckpointManifest&, const CheckpointManifest&) = default;
};

/// The document "stagecraft.checkpoint". Throws FormatError as the readers of
/// graph_json.h do, for a file name that is a path or appears twice, for no files, and for pieces of a tensor that lie
/// outside it, overlap, leave a part out or are in no file.
[[nodiscard]] CheckpointManifest parse_checkpoint(const std::string& text, const std::string& file);
[[nodiscard]] std::string checkpoint_json(const CheckpointManifest& manifest);
[[nodiscard]] DocumentSchema checkpoint_schema();
/// `text` of a document whose checksum is `crc32`, with 0 in its place: the input of the checksum. It covers the bytes,
/// not the values read from them, so that a document of an older version keeps its checksum.
[[nodiscard]] std::string without_checksum(std::string text, std::uint32_t crc32);

/// The name under which a safetensors file holds a part of a tensor: that of the tensor for all of it, else with the
/// slice after it, "fc1.weight[0:3, 64:128]".
[[nodiscard]] std::string entry_name(const std::string& tensor, const std::vector<std::int64_t>& shape,
                                     const TensorSlice& part);
/// What a safetensors file says in its metadata, under the entry's name, of a part that is not a whole tensor.
[[nodiscard]] std::string entry_text(const std::string& tensor, const std::vector<std::int64_t>& shape,
                                     const TensorSlice& part);
/// Adds the tensors and pieces of `file`, which has this header. Throws FormatError, beginning with `path`, for
/// metadata that entry_text did not write, and for a dtype or shape that another piece's file contradicts.
void add_tensors(CheckpointManifest& manifest, const std::string& file, const SafetensorsHeader& header,
                 const std::string& path);

}  // namespace stagecraft::format
