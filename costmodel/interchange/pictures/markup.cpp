#include "costmodel/interchange/pictures/markup.h"

#include "costmodel/format/files/utf8.h"

namespace stagecraft::interchange {

std::string markup_text(std::string_view text, std::size_t longest) {
  std::string out;
  std::size_t characters = 0;
  for (const char c : format::valid_utf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0U) != 0x80 && ++characters > longest) return out + "...";
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += byte < 0x20 || byte == 0x7F ? ' ' : c;
    }
  }
  return out;
}

}  // namespace stagecraft::interchange
