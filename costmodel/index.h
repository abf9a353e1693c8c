#pragma once

#include <cassert>
#include <concepts>
#include <cstddef>
#include <utility>

namespace stagecraft {

/// `i`, at least 0, as containers count.
template <std::signed_integral Integer>
[[nodiscard]] constexpr std::size_t to_index(Integer i) {
  assert(i >= 0);
  return static_cast<std::size_t>(i);
}

/// A count or an index as an int, which layers, stages, ranks and devices are numbered with. It must fit.
template <std::integral Integer>
[[nodiscard]] constexpr int to_int(Integer n) {
  assert(std::in_range<int>(n));
  return static_cast<int>(n);
}

}  // namespace stagecraft
