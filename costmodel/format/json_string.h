#pragma once

#include <string>
#include <string_view>

namespace stagecraft {

/// `text` as a JSON string with its quotes, for writers that put JSON together themselves. What is not UTF-8 becomes
/// U+FFFD, see valid_utf8.
[[nodiscard]] std::string json_string(std::string_view text);

}  // namespace stagecraft
