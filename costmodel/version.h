#pragma once

namespace stagecraft {

/// The program's version, "0.1.0", for `--version` and Provenance::tool.
[[nodiscard]] const char* version();

}  // namespace stagecraft
