#include "costmodel/format/escaping.h"

#include <nlohmann/json.hpp>

namespace stagecraft::format {

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
    const unsigned char lead = byte(i);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xC2 ? 0
                               : lead < 0xE0 ? 2
                               : lead < 0xF0 ? 3
                               : lead < 0xF5 ? 4
                                             : 0;
    if (length == 0 || i + length > text.size()) return false;
    for (std::size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) return false;
    }
    if (lead == 0xE0 && byte(i + 1) < 0xA0) return false;  // overlong
    if (lead == 0xED && byte(i + 1) > 0x9F) return false;  // surrogates
    if (lead == 0xF0 && byte(i + 1) < 0x90) return false;  // overlong
    if (lead == 0xF4 && byte(i + 1) > 0x8F) return false;  // above U+10FFFF
    i += length;
  }
  return true;
}

std::string valid_utf8(std::string_view text) {
  if (is_utf8(text)) return std::string(text);
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t length = 1;
    while (length <= 4 && !is_utf8(text.substr(i, length))) ++length;
    if (length > 4) {
      out += "\xef\xbf\xbd";
      ++i;
    } else {
      out += text.substr(i, length);
      i += length;
    }
  }
  return out;
}

std::string json_string(std::string_view text) { return nlohmann::json(valid_utf8(text)).dump(); }

std::string markup_text(std::string_view text, std::size_t longest) {
  std::string out;
  std::size_t characters = 0;
  for (const char c : valid_utf8(text)) {
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

std::string shell_line(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += ' ';
    const bool plain = !word.empty() && word.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                            "_-./:=,+@%") == std::string::npos;
    if (plain) {
      out += word;
      continue;
    }
    out += '\'';
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    out += '\'';
  }
  return out;
}

std::string command_line(const std::string& verb, int argc, const char* const* argv) {
  std::vector<std::string> words{"stagecraft", verb};
  words.insert(words.end(), argv + 1, argv + argc);
  return shell_line(words);
}

}  // namespace stagecraft::format
