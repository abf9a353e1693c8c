#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace stagecraft::files {

/// "F32", "I64", ...: the safetensors name of an element type, if there is one.
[[nodiscard]] std::optional<std::string> safetensors_word(at::ScalarType dtype);
/// The element type of one of safetensors_dtypes(). Throws std::invalid_argument for another word.
[[nodiscard]] at::ScalarType safetensors_type(const std::string& word);

}  // namespace stagecraft::files
