#pragma once

#include <string>

#include "costmodel/format/cursor.h"
#include "executor/intake/pt2/exported_program.h"

// Only for the readers of this folder: torch.export's JSON for values. All throw FormatError with the place.

namespace stagecraft {

/// The only member of an object that represents a choice.
struct Choice {
  std::string key;
  Cursor value;
};
[[nodiscard]] Choice read_choice(const Cursor& at);

[[nodiscard]] c10::ScalarType read_dtype(const Cursor& at);
/// Refuses all but strided ones.
[[nodiscard]] c10::Layout read_layout(const Cursor& at);
[[nodiscard]] c10::MemoryFormat read_memory_format(const Cursor& at);
[[nodiscard]] c10::Device read_device(const Cursor& at);
/// A number, or a text for a number that JSON cannot represent.
[[nodiscard]] double read_float(const Cursor& at);
[[nodiscard]] std::int64_t read_int(const Cursor& at);
/// A number or an expression.
[[nodiscard]] SizeExpression read_size(const Cursor& at);
/// Refuses sizes, strides and offsets below 0, and more values than 64 bits count.
[[nodiscard]] TensorMeta read_tensor_meta(const Cursor& at);

}  // namespace stagecraft
