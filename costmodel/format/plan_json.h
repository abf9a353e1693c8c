#pragma once

#include <string>

#include "costmodel/format/document_schema.h"
#include "costmodel/plan.h"

namespace stagecraft::format {

// See graph_json.h for the rules of all readers and writers.

[[nodiscard]] Plan parse_plan(const std::string& text, const std::string& file);
[[nodiscard]] Plan read_plan(const std::string& path);
[[nodiscard]] std::string plan_json(const Plan& plan);
[[nodiscard]] DocumentSchema plan_schema();

}  // namespace stagecraft::format
