#pragma once

#include <string>

#include "costmodel/format/document_schema.h"
#include "costmodel/timeline.h"

namespace stagecraft::format {

// The document "stagecraft.timeline"; see graph_json.h for the rules of all readers and writers.

[[nodiscard]] Measurement parse_measurement(const std::string& text, const std::string& file);
[[nodiscard]] Measurement read_measurement(const std::string& path);
[[nodiscard]] std::string measurement_json(const Measurement& measurement);
[[nodiscard]] DocumentSchema measurement_schema();

}  // namespace stagecraft::format
