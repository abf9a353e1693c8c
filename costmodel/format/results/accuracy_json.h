#pragma once

#include <string>

#include "costmodel/accuracy/calibrate.h"
#include "costmodel/accuracy/compare.h"
#include "costmodel/accuracy/step_change.h"
#include "costmodel/accuracy/validate.h"
#include "costmodel/format/document_schema.h"

namespace stagecraft::format {

/// The document "stagecraft.calibration", as in graph_json.h.
[[nodiscard]] Calibration parse_calibration(const std::string& text, const std::string& file);
[[nodiscard]] std::string calibration_json(const Calibration& calibration);
[[nodiscard]] DocumentSchema calibration_schema();
/// read_text and parse_calibration together.
[[nodiscard]] Calibration read_calibration(const std::string& path);

// The document "stagecraft.comparison", see graph_json.h for the rules of all readers and writers.

/// The errors in the document are for other programs; the reader ignores their values.
[[nodiscard]] Comparison parse_comparison(const std::string& text, const std::string& file);
[[nodiscard]] std::string comparison_json(const Comparison& comparison);
[[nodiscard]] DocumentSchema comparison_schema();

/// The document "stagecraft.change" for other programs.
[[nodiscard]] std::string step_change_json(const StepChange& change);
[[nodiscard]] DocumentSchema step_change_schema();

/// The document "stagecraft.validation", as in graph_json.h.
[[nodiscard]] Validation parse_validation(const std::string& text, const std::string& file);
[[nodiscard]] std::string validation_json(const Validation& validation);
[[nodiscard]] DocumentSchema validation_schema();

}  // namespace stagecraft::format
