#include "costmodel/interchange/convert/python_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <unordered_set>

namespace stagecraft::interchange {
namespace {

constexpr std::array<std::string_view, 35> kKeywords{
    "False",  "None", "True",     "and",    "as",   "assert", "async",  "await",   "break", "class",  "continue", "def",
    "del",    "elif", "else",     "except", "for",  "from",   "global", "finally", "if",    "import", "in",       "is",
    "lambda", "not",  "nonlocal", "or",     "pass", "raise",  "return", "try",     "while", "with",   "yield"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

bool is_numbered_node(std::string_view id) {
  constexpr std::string_view kNode = "node";
  return id.starts_with(kNode) && id.size() > kNode.size() &&
         std::all_of(id.begin() + kNode.size(), id.end(), is_digit);
}

}  // namespace

bool is_python_name(std::string_view text) {
  return !text.empty() && !is_digit(text.front()) && std::all_of(text.begin(), text.end(), is_word) &&
         std::find(kKeywords.begin(), kKeywords.end(), text) == kKeywords.end();
}

std::string python_string(std::string_view text) {
  constexpr std::string_view kHarmless = " .,:;=()[]{}+-*/<>_!?@#%&|~^$";
  std::string out = "\"";
  for (const char c : text) {
    if (is_word(c) || kHarmless.find(c) != kHarmless.npos) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out + "\"";
}

std::vector<std::string> python_names(const std::vector<std::string>& ids) {
  std::vector<std::string> out;
  std::unordered_set<std::string> taken;
  for (const std::string& id : ids) {
    std::string name = id;
    if (!is_numbered_node(id)) {
      std::replace_if(name.begin(), name.end(), [](char c) { return !is_word(c); }, '_');
      name = "layer_" + name;
    }
    std::string free = name;
    for (int again = 2; !taken.insert(free).second; ++again) free = fmt::format("{}_{}", name, again);
    out.push_back(std::move(free));
  }
  return out;
}

std::string joined(const std::vector<std::string>& parts) { return fmt::format("{}", fmt::join(parts, ", ")); }

std::string python_tuple(const std::vector<std::string>& parts) {
  return "(" + joined(parts) + (parts.size() == 1 ? ",)" : ")");
}

std::string python_result(const std::vector<std::string>& parts) {
  return parts.size() == 1 ? parts.front() : python_tuple(parts);
}

}  // namespace stagecraft::interchange
