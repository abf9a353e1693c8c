#pragma once

#include <cassert>
#include <cstddef>

namespace stagecraft {

/// `i`, at least 0, as containers count.
[[nodiscard]] constexpr std::size_t index(int i) {
  assert(i >= 0);
  return static_cast<std::size_t>(i);
}

}  // namespace stagecraft
