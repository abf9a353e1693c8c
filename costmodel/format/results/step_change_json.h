#pragma once

#include <string>

#include "costmodel/accuracy/step_change.h"

namespace stagecraft::format {

/// The document "stagecraft.change" for other programs, described by change.schema.json.
[[nodiscard]] std::string step_change_json(const StepChange& change);

}  // namespace stagecraft::format
