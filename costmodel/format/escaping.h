#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stagecraft::format {

/// True if `text` is well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF (RFC 3629).
[[nodiscard]] bool is_utf8(std::string_view text);

/// `text` with U+FFFD for each byte that is not part of well-formed UTF-8.
[[nodiscard]] std::string valid_utf8(std::string_view text);

/// `text` as a JSON string with its quotes, for writers that compose JSON themselves. Bytes that are not UTF-8 become
/// U+FFFD, see valid_utf8.
[[nodiscard]] std::string json_string(std::string_view text);

/// `text` for an element or a quoted attribute of XML and HTML: well-formed UTF-8, the characters & < > " as entities,
/// control characters as spaces. Of more than `longest` characters, the first `longest` and "...".
[[nodiscard]] std::string markup_text(std::string_view text, std::size_t longest = std::string_view::npos);

/// `words` as a POSIX shell command line.
[[nodiscard]] std::string shell_line(const std::vector<std::string>& words);

/// The command line of a tool, as typed: "stagecraft plan graph.json", where `argv` may begin with a path.
[[nodiscard]] std::string command_line(const std::string& verb, int argc, const char* const* argv);

}  // namespace stagecraft::format
