#pragma once

#include <cassert>
#include <concepts>
#include <cstddef>
#include <utility>

namespace stagecraft {

/// `i`, which must not be negative, as an index into a container.
template <std::signed_integral Integer>
[[nodiscard]] constexpr std::size_t to_index(Integer i) {
  assert(i >= 0);
  return static_cast<std::size_t>(i);
}

/// A count or an index as an int, the type that numbers layers, stages, ranks and devices. It must fit.
template <std::integral Integer>
[[nodiscard]] constexpr int to_int(Integer n) {
  assert(std::in_range<int>(n));
  return static_cast<int>(n);
}

}  // namespace stagecraft
