#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace stagecraft::testing {

/// `whole` with one to three bytes or runs of bytes changed, removed or copied in; `least` if nothing is left.
inline std::string mutated(const std::string& whole, std::mt19937_64& random, const std::string& least) {
  std::string text = whole;
  for (std::uint64_t i = 0; i <= random() % 3; ++i) {
    const std::size_t at = random() % text.size();
    switch (random() % 3) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + random() % 4);
        break;
      default:
        text.insert(at, whole.substr(random() % whole.size(), random() % 9));
    }
    if (text.empty()) text = least;
  }
  return text;
}

}  // namespace stagecraft::testing
