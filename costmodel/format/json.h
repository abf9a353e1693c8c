#pragma once

#include <string>

#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/timeline.h"
#include "costmodel/topology.h"

namespace stagecraft::format {

// Each parse_* reads one document; `file` names it in messages. All throw FormatError
// "FILE: POINTER: found, expected" for text that is not JSON, another format or version, a missing or unknown key, a
// wrong type, a number out of range, or content that validate() refuses. Each *_json returns the text, the same bytes
// for the same value, ending in a newline. The files in schemas/ describe the formats.

[[nodiscard]] Graph parse_graph(const std::string& text, const std::string& file);
[[nodiscard]] std::string graph_json(const Graph& graph);

[[nodiscard]] Topology parse_topology(const std::string& text, const std::string& file);
[[nodiscard]] std::string topology_json(const Topology& topology);

[[nodiscard]] Plan parse_plan(const std::string& text, const std::string& file);
[[nodiscard]] std::string plan_json(const Plan& plan);

[[nodiscard]] Prediction parse_prediction(const std::string& text, const std::string& file);
[[nodiscard]] std::string prediction_json(const Prediction& prediction);

[[nodiscard]] Measurement parse_measurement(const std::string& text, const std::string& file);
[[nodiscard]] std::string measurement_json(const Measurement& measurement);

/// read_text and parse_* together; "-" is standard input.
[[nodiscard]] Graph read_graph(const std::string& path);
[[nodiscard]] Topology read_topology(const std::string& path);
[[nodiscard]] Plan read_plan(const std::string& path);
[[nodiscard]] Prediction read_prediction(const std::string& path);
[[nodiscard]] Measurement read_measurement(const std::string& path);

}  // namespace stagecraft::format
