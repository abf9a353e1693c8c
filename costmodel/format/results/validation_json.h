#pragma once

#include <string>

#include "costmodel/accuracy/validate.h"

namespace stagecraft::format {

/// As in graph_json.h: one document and its reader, described by validation.schema.json.
[[nodiscard]] Validation parse_validation(const std::string& text, const std::string& file);
[[nodiscard]] std::string validation_json(const Validation& validation);

}  // namespace stagecraft::format
