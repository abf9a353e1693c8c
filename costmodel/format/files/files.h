#pragma once

#include <string>

namespace stagecraft::format {

/// The complete file at `path`; "-" is standard input. Throws FormatError with the path and the system's reason.
[[nodiscard]] std::string read_text(const std::string& path);

/// Writes `text` to `path`: to a temporary file next to it, then renamed, so that a reader never sees half a file; "-"
/// is standard output. Throws FormatError with the path and the system's reason; the old file is then unchanged.
void write_text(const std::string& path, const std::string& text);

/// Throws as write_text(path, ...) would, and writes nothing: a check before long work.
void check_can_write(const std::string& path);

}  // namespace stagecraft::format
