#pragma once

#include <string>

#include "costmodel/analysis/whatif.h"
#include "costmodel/format/document_schema.h"

namespace stagecraft::format {

/// The document "stagecraft.whatif" for other programs.
[[nodiscard]] std::string whatif_json(const WhatIf& result);
[[nodiscard]] DocumentSchema whatif_schema();

}  // namespace stagecraft::format
