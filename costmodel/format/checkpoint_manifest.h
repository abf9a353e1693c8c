#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/units.h"

namespace stagecraft {

/// A file of a checkpoint, beside the manifest.
struct CheckpointFile {
  std::string name;
  Bytes bytes;
  std::uint32_t crc32 = 0;  ///< of the whole file, as zlib and PNG have it
  friend bool operator==(const CheckpointFile&, const CheckpointFile&) = default;
};

/// What a checkpoint says besides its tensors. Nothing here but `plan_hash` depends on the plan.
struct CheckpointManifest {
  std::int64_t step = 0;  ///< steps done: the number of the next one
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
  std::string data;          ///< the data source's name
  std::int64_t samples = 0;  ///< seen so far: the data's position
  int microbatches = 1;
  std::int64_t microbatch_samples = 1;
  std::optional<double> loss_scale;   ///< of a run in float16
  std::int64_t loss_scale_steps = 0;  ///< without an overflow since the scale last changed
  std::string plan_hash;              ///< for information
  bool finite = true;                 ///< no parameter, buffer or optimizer state is infinite or not a number
  std::vector<CheckpointFile> files;
  std::uint32_t manifest_crc32 = 0;  ///< of the document with 0 here; the reader leaves the comparison to its caller
  Provenance provenance;
  friend bool operator==(const CheckpointManifest&, const CheckpointManifest&) = default;
};

/// The document "stagecraft.checkpoint", described by checkpoint.schema.json. Throws FormatError as the readers of
/// json.h do, and for a file name that is a path, appears twice, or of which there is none.
[[nodiscard]] CheckpointManifest parse_checkpoint(const std::string& text, const std::string& file);
[[nodiscard]] std::string checkpoint_json(const CheckpointManifest& manifest);
/// `text` of a document whose checksum is `crc32`, with 0 in its place: what the checksum is of. Its bytes count and
/// not what is read from them, so that a document of an older version keeps its checksum.
[[nodiscard]] std::string without_checksum(std::string text, std::uint32_t crc32);

}  // namespace stagecraft
