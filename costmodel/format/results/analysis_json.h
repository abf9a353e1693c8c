#pragma once

#include <string>

#include "costmodel/analysis/diff.h"
#include "costmodel/analysis/explain.h"
#include "costmodel/analysis/whatif.h"
#include "costmodel/format/document_schema.h"

namespace stagecraft::format {

/// The document "stagecraft.explanation" for other programs; without the prediction's timeline.
[[nodiscard]] std::string explanation_json(const Explanation& explanation);
[[nodiscard]] DocumentSchema explanation_schema();

/// The document "stagecraft.whatif" for other programs.
[[nodiscard]] std::string whatif_json(const WhatIf& result);
[[nodiscard]] DocumentSchema whatif_schema();

/// The document "stagecraft.diff" for other programs.
[[nodiscard]] std::string plan_comparison_json(const PlanComparison& comparison);
[[nodiscard]] DocumentSchema plan_comparison_schema();

}  // namespace stagecraft::format
