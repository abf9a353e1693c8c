#pragma once

#include <c10/core/ScalarType.h>

#include <string>

namespace stagecraft {

/// "float32", "int64", ...: the word that files use for an element type. Throws std::invalid_argument for a type that
/// has none.
[[nodiscard]] std::string dtype_name(at::ScalarType dtype);
/// The inverse. Throws std::invalid_argument listing the words.
[[nodiscard]] at::ScalarType dtype_of(const std::string& name);

}  // namespace stagecraft
