#pragma once

#include <string>
#include <string_view>

namespace stagecraft::format {

/// True if `text` is well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF (RFC 3629).
[[nodiscard]] bool is_utf8(std::string_view text);

/// `text` with U+FFFD for each byte that is not part of well-formed UTF-8.
[[nodiscard]] std::string valid_utf8(std::string_view text);

}  // namespace stagecraft::format
