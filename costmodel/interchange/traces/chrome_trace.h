#pragma once

#include <string>

#include "costmodel/timeline.h"

namespace stagecraft::interchange {

/// The timeline as Chrome trace events (also read by Perfetto): one process per rank, with one track for computation,
/// one for waiting and one for sending; times in microseconds. `title` names the file in the viewer.
[[nodiscard]] std::string chrome_trace(const Timeline& timeline, const std::string& title);

}  // namespace stagecraft::interchange
