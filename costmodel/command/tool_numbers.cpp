#include "costmodel/command/tool_numbers.h"

#include <array>
#include <cstdio>
#include <string>

#include "costmodel/text/number.h"

namespace stagecraft {

std::string number_text(double value) {
  std::array<char, 32> out{};
  std::snprintf(out.data(), out.size(), "%.15g", value);
  return out.data();
}

std::string shown_number(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of("+-.0123456789eE") == std::string::npos;
  return plain ? text : "\"" + text + "\"";
}

CLI::Validator number_from(double least, double most) {
  const std::string range = "from " + number_text(least) + " to " + number_text(most);
  const auto check = [=](std::string& text) {
    const std::optional<double> value = number_in<double>(text);
    if (value && *value >= least && *value <= most) return std::string();
    return shown_number(text) + " is not a number " + range;
  };
  return {check, range};
}

CLI::Validator number_above(double bound) {
  const std::string range = "above " + number_text(bound);
  const auto check = [=](std::string& text) {
    const std::optional<double> value = number_in<double>(text);
    if (value && *value > bound) return std::string();
    return shown_number(text) + " is not a number " + range;
  };
  return {check, range};
}

}  // namespace stagecraft
