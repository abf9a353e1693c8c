#pragma once

#include <string>

#include "costmodel/analysis/explain.h"

namespace stagecraft::format {

/// The document "stagecraft.explanation" for other programs, described by explanation.schema.json; without the
/// prediction's timeline.
[[nodiscard]] std::string explanation_json(const Explanation& explanation);

}  // namespace stagecraft::format
