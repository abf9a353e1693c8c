#pragma once

#include <string>

#include "costmodel/accuracy/calibrate.h"
#include "costmodel/format/document_schema.h"

namespace stagecraft::format {

/// The document "stagecraft.calibration", as in graph_json.h.
[[nodiscard]] Calibration parse_calibration(const std::string& text, const std::string& file);
[[nodiscard]] std::string calibration_json(const Calibration& calibration);
[[nodiscard]] DocumentSchema calibration_schema();
/// read_text and parse_calibration together.
[[nodiscard]] Calibration read_calibration(const std::string& path);

}  // namespace stagecraft::format
