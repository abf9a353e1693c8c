#pragma once

#include <string>

namespace stagecraft {

/// The whole file at `path`; "-" is standard input. Throws FormatError with the path and the system's reason.
[[nodiscard]] std::string read_text(const std::string& path);

/// Puts `text` at `path`: written beside it, then renamed, so that a reader never sees half a file; "-" is standard
/// output. Throws FormatError with the path and the system's reason; the old file then stands unchanged.
void write_text(const std::string& path, const std::string& text);

/// Throws as write_text(path, ...) would, and writes nothing: for the start of work whose result goes there.
void check_can_write(const std::string& path);

}  // namespace stagecraft
