#pragma once

#include <string>

#include "costmodel/format/document_schema.h"
#include "costmodel/prediction/predict.h"

namespace stagecraft::format {

// See graph_json.h for the rules of all readers and writers.

[[nodiscard]] Prediction parse_prediction(const std::string& text, const std::string& file);
[[nodiscard]] Prediction read_prediction(const std::string& path);
[[nodiscard]] std::string prediction_json(const Prediction& prediction);
[[nodiscard]] DocumentSchema prediction_schema();

}  // namespace stagecraft::format
