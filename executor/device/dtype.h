#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "costmodel/state_types.h"

namespace stagecraft::device {

/// "float32", "int64", ...: the name of an element type in files. Throws std::invalid_argument for a type without one.
[[nodiscard]] std::string dtype_name(at::ScalarType dtype);
/// The same for messages: LibTorch's own name for a type that has none.
[[nodiscard]] std::string dtype_text(at::ScalarType dtype);
/// The inverse of dtype_name. Throws std::invalid_argument listing the words.
[[nodiscard]] at::ScalarType dtype_of(const std::string& name);

/// The same type of LibTorch.
[[nodiscard]] at::ScalarType dtype_of(StateType type);
/// The type in which a plan with `dtype` computes; empty means float32. Throws std::invalid_argument for a type other
/// than float32, bfloat16 and float16.
[[nodiscard]] at::ScalarType compute_type(const std::string& dtype);

}  // namespace stagecraft::device
