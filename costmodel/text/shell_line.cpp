#include "costmodel/text/shell_line.h"

namespace stagecraft {

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

}  // namespace stagecraft
