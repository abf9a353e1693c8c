#pragma once

#include <concepts>
#include <cstddef>
#include <cstdlib>
#include <utility>

namespace stagecraft {

/// Aborts unless `holds`, in builds in which containers of the standard library check their indices too.
constexpr void check_index(bool holds) {
#ifdef _GLIBCXX_ASSERTIONS
  if (!holds) std::abort();
#else
  (void)holds;
#endif
}

/// `i`, which must not be negative, as an index into a container.
template <std::signed_integral Integer>
[[nodiscard]] constexpr std::size_t to_index(Integer i) {
  check_index(i >= 0);
  return static_cast<std::size_t>(i);
}

/// A count or an index as an int, the type that numbers layers, stages, ranks and devices. It must fit.
template <std::integral Integer>
[[nodiscard]] constexpr int to_int(Integer n) {
  check_index(std::in_range<int>(n));
  return static_cast<int>(n);
}

}  // namespace stagecraft
