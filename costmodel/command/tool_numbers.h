#pragma once

#include <CLI/CLI.hpp>
#include <limits>
#include <string>

#include "costmodel/text/number.h"

// For the tools' main functions only: ranges of numeric options. Each is for CLI::Option::transform, so that the
// checked value is the stored one ("010" is ten); wrong ones are wrong usage: "--steps: 0 is not an integer of 1 or
// more".

namespace stagecraft {

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
    const std::optional<T> value = number_in<T>(text);
    if (value && *value >= least && *value <= most) {
      text = std::to_string(*value);
      return std::string();
    }
    const bool too_large = !value && !text.empty() && text.find_first_not_of("0123456789") == text.npos;
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
