#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "costmodel/units.h"

namespace stagecraft::format {

// The safetensors format: 8 bytes with the header's length (little-endian), the header (JSON, may end in spaces), the
// tensors' bytes without holes. Source: github.com/huggingface/safetensors, README.md, "Format".

/// Where a tensor's values are: row-major, little-endian, in [begin, end), counted from the first byte after the
/// header.
struct SafetensorsEntry {
  std::string dtype;  ///< "F32", ...
  std::vector<std::int64_t> shape;
  Bytes begin;
  Bytes end;
  friend bool operator==(const SafetensorsEntry&, const SafetensorsEntry&) = default;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;  ///< the key "__metadata__"
  std::map<std::string, SafetensorsEntry> tensors;
  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

/// The longest header that the format allows.
inline constexpr Bytes kMostSafetensorsHeader(100'000'000);

/// All dtypes that we read: F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL, C64.
[[nodiscard]] const std::vector<std::string>& safetensors_dtypes();
/// Bytes of one value. Throws std::invalid_argument listing the dtypes for an unknown one.
[[nodiscard]] Bytes safetensors_value_bytes(const std::string& dtype);

class Cursor;  // cursor.h
/// For readers of this folder: the keys "dtype" and "shape" of a tensor, which begins at 0. Throws FormatError for an
/// unknown dtype, and for more than 2^60 bytes.
[[nodiscard]] SafetensorsEntry read_tensor_type(const Cursor& dtype, const Cursor& shape);

/// Parses `text` as the header of a file with `data` bytes after it. Throws FormatError "FILE: POINTER: found,
/// expected" for text that is not such a JSON object, a name that appears twice, an unknown dtype, a tensor whose shape
/// and bytes do not agree, and tensors that overlap, leave a hole or do not end at the file's end.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(const std::string& text, Bytes data, const std::string& file);

/// The names of the files that an index of shards lists (`weight_map`: the file of each tensor), each once, ascending.
/// `text` is what transformers writes as model.safetensors.index.json. Throws FormatError for another document, and for
/// a file that is not beside the index.
[[nodiscard]] std::vector<std::string> parse_shard_index(const std::string& text, const std::string& file);

/// The header as text, tensors in the order of their bytes, with spaces up to a multiple of 8 bytes.
/// Throws std::invalid_argument for a name or metadata that is not UTF-8.
[[nodiscard]] std::string safetensors_header_text(const SafetensorsHeader& header);

}  // namespace stagecraft::format
