#pragma once

#include <string>

#include "costmodel/analysis/explain.h"
#include "costmodel/format/document_schema.h"

namespace stagecraft::format {

/// The document "stagecraft.explanation" for other programs; without the
/// prediction's timeline.
[[nodiscard]] std::string explanation_json(const Explanation& explanation);
[[nodiscard]] DocumentSchema explanation_schema();

}  // namespace stagecraft::format
