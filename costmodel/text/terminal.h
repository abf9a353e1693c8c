#pragma once

namespace stagecraft {

/// Whether the open file `descriptor` is a terminal that understands escape sequences: one with TERM=dumb does not.
[[nodiscard]] bool is_terminal(int descriptor);

/// Whether standard error shows progress: it is_terminal, and no CI job's. CI services give jobs a terminal too, keep
/// all that is written to it, and set the variable CI.
[[nodiscard]] bool shows_progress();

}  // namespace stagecraft
