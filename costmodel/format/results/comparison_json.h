#pragma once

#include <string>

#include "costmodel/accuracy/compare.h"
#include "costmodel/format/document_schema.h"

namespace stagecraft::format {

// The document "stagecraft.comparison", see graph_json.h for the rules of all readers and writers.

/// The errors in the document are for other programs; the reader ignores their values.
[[nodiscard]] Comparison parse_comparison(const std::string& text, const std::string& file);
[[nodiscard]] std::string comparison_json(const Comparison& comparison);
[[nodiscard]] DocumentSchema comparison_schema();

}  // namespace stagecraft::format
