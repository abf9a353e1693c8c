#pragma once

#include <string>

#include "costmodel/analysis/whatif.h"

namespace stagecraft::format {

/// The document "stagecraft.whatif" for other programs, described by whatif.schema.json.
[[nodiscard]] std::string whatif_json(const WhatIf& result);

}  // namespace stagecraft::format
