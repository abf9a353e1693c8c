#pragma once

#include <string>

#include "costmodel/accuracy/validate.h"
#include "costmodel/format/document_schema.h"

namespace stagecraft::format {

/// The document "stagecraft.validation", as in graph_json.h.
[[nodiscard]] Validation parse_validation(const std::string& text, const std::string& file);
[[nodiscard]] std::string validation_json(const Validation& validation);
[[nodiscard]] DocumentSchema validation_schema();

}  // namespace stagecraft::format
