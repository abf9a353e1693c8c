#pragma once

#include <string>

#include "costmodel/accuracy/step_change.h"
#include "costmodel/format/document_schema.h"

namespace stagecraft::format {

/// The document "stagecraft.change" for other programs.
[[nodiscard]] std::string step_change_json(const StepChange& change);
[[nodiscard]] DocumentSchema step_change_schema();

}  // namespace stagecraft::format
