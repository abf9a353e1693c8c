#pragma once

#include <string>
#include <string_view>

namespace stagecraft::interchange {

/// `text` for an element or a quoted attribute of XML and HTML: well-formed UTF-8, the characters & < > " as entities,
/// control characters as spaces. Of more than `longest` characters, the first `longest` and "...".
[[nodiscard]] std::string markup_text(std::string_view text, std::size_t longest = std::string_view::npos);

}  // namespace stagecraft::interchange
