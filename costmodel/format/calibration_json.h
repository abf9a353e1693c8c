#pragma once

#include <string>

#include "costmodel/accuracy/calibrate.h"

namespace stagecraft::format {

/// As in graph_json.h: one document and its reader, described by calibration.schema.json.
[[nodiscard]] Calibration parse_calibration(const std::string& text, const std::string& file);
[[nodiscard]] std::string calibration_json(const Calibration& calibration);
/// read_text and parse_calibration together.
[[nodiscard]] Calibration read_calibration(const std::string& path);

}  // namespace stagecraft::format
