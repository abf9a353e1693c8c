#pragma once

#include <string>
#include <string_view>

#include "costmodel/format/cursor.h"
#include "executor/intake/graph/size_expression.h"
#include "executor/intake/pt2/exported_program.h"

// Only for the readers of this folder: torch.export's JSON for values. All throw FormatError with the place.

namespace stagecraft::intake {

/// Reads what torch.export writes: `Mul(Integer(8), Symbol('s77', positive=True, integer=True))`, nested at most 64
/// deep, with at most 10000 parts. Supports Integer, Symbol, Add, Mul, FloorDiv, Mod, PythonMod, Min, Max, Pow, and the
/// constants that SymPy writes by name (Zero, One, NegativeOne). Throws std::invalid_argument with the text, the
/// position of the error and the known names.
[[nodiscard]] SizeExpression parse_size_expression(std::string_view text);

/// The only member of an object that represents a choice.
struct Choice {
  std::string key;
  format::Cursor value;
};
[[nodiscard]] Choice read_choice(const format::Cursor& at);

[[nodiscard]] c10::ScalarType read_dtype(const format::Cursor& at);
/// Rejects all except strided ones.
[[nodiscard]] c10::Layout read_layout(const format::Cursor& at);
[[nodiscard]] c10::MemoryFormat read_memory_format(const format::Cursor& at);
[[nodiscard]] c10::Device read_device(const format::Cursor& at);
/// A number, or a string for a number that JSON cannot represent.
[[nodiscard]] double read_float(const format::Cursor& at);
[[nodiscard]] std::int64_t read_int(const format::Cursor& at);
/// A number or an expression.
[[nodiscard]] SizeExpression read_size(const format::Cursor& at);
/// Refuses sizes, strides and offsets below 0, and more values than 64 bits count.
[[nodiscard]] TensorMeta read_tensor_meta(const format::Cursor& at);

}  // namespace stagecraft::intake
