#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <optional>
#include <string_view>
#include <system_error>

namespace stagecraft {

/// The longest decimal number of type T at the front of `text`, which is removed. Absent, and nothing is removed, if
/// the text does not begin with a number (a space or a "+" is not part of one), or if the number is out of T's range,
/// infinite or NaN. An unsigned number has no "-".
template <class T>
[[nodiscard]] std::optional<T> take_number(std::string_view& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  if constexpr (std::floating_point<T>) {
    if (!std::isfinite(value)) return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

/// The number that is all of `text`, as take_number reads it; absent if anything follows it.
template <class T>
[[nodiscard]] std::optional<T> number_in(std::string_view text) {
  const std::optional<T> value = take_number<T>(text);
  return text.empty() ? value : std::nullopt;
}

}  // namespace stagecraft
