#pragma once

#include <string>

#include "costmodel/analysis/diff.h"
#include "costmodel/format/document_schema.h"

namespace stagecraft::format {

/// The document "stagecraft.diff" for other programs.
[[nodiscard]] std::string plan_comparison_json(const PlanComparison& comparison);
[[nodiscard]] DocumentSchema plan_comparison_schema();

}  // namespace stagecraft::format
