#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <string>
#include <system_error>

// For the tools' main functions only: ranges of numeric options. Each is for CLI::Option::transform, so that the
// checked value is the stored one ("010" is ten); wrong ones are wrong usage: "--steps: 0 is not an integer of 1 or
// more".

namespace stagecraft {

/// All of `text` as a decimal number of type T, or why it is not one: invalid or out of range.
template <class T>
[[nodiscard]] std::errc parse_number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size()) return std::errc::invalid_argument;
  return error;
}

/// `text` as quoted in a message: unchanged if it looks like a number.
[[nodiscard]] std::string shown_number(const std::string& text);

/// A number without the trailing zeros of std::to_string: "0.001", "1000000", "1e+30".
[[nodiscard]] std::string number_text(double value);

/// Integers from `least` to `most`; `why` explains `most` in messages. T is the type of the option's variable, or of
/// its elements.
template <class T>
[[nodiscard]] CLI::Validator integer(T least, T most = std::numeric_limits<T>::max(), const std::string& why = "") {
  const bool open = most == std::numeric_limits<T>::max();
  const std::string lowest = std::to_string(least);
  const std::string range = "from " + lowest + " to " + std::to_string(most);
  const auto check = [=](std::string& text) {
    T value{};
    const std::errc error = parse_number(text, value);
    if (error == std::errc() && value >= least && value <= most) {
      text = std::to_string(value);
      return std::string();
    }
    const bool too_large = error == std::errc::result_out_of_range && text.front() != '-';
    return shown_number(text) + " is not an integer " + (open && !too_large ? "of " + lowest + " or more" : range) +
           (why.empty() ? "" : ", " + why);
  };
  return {check, open ? lowest + " or more" : range};
}

/// Finite numbers from `least` to `most`.
[[nodiscard]] CLI::Validator number_from(double least, double most);

/// Finite numbers above `bound`.
[[nodiscard]] CLI::Validator number_above(double bound);

}  // namespace stagecraft
