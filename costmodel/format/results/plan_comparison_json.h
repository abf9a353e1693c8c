#pragma once

#include <string>

#include "costmodel/analysis/diff.h"

namespace stagecraft::format {

/// The document "stagecraft.diff" for other programs, described by diff.schema.json.
[[nodiscard]] std::string plan_comparison_json(const PlanComparison& comparison);

}  // namespace stagecraft::format
