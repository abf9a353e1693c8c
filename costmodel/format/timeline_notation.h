#pragma once

#include "costmodel/format/description.h"
#include "costmodel/timeline.h"

// Only for this folder: what predictions and measurements share.

namespace stagecraft::format {

[[nodiscard]] Notation<RankMemory> rank_memory();
[[nodiscard]] Notation<Timeline> timeline();

}  // namespace stagecraft::format
