#pragma once

#include <string>
#include <string_view>

namespace stagecraft::format {

/// `text` as a JSON string with its quotes, for writers that compose JSON themselves. Bytes that are not UTF-8 become
/// U+FFFD, see valid_utf8.
[[nodiscard]] std::string json_string(std::string_view text);

}  // namespace stagecraft::format
