#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft {

/// The content of a file is wrong. The message reads "FILE: POINTER: what was found, what was expected".
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The machine refused: a driver, a device or one of their libraries. The message names the call, its result and a
/// remedy.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The answer "there is none", as when no plan fits in memory. A value, never thrown.
struct Infeasible {
  std::string reason;
  friend bool operator==(const Infeasible&, const Infeasible&) = default;
};

/// The text `unknown WHAT "NAME", known are A, B, C` for a name that is not in a table.
[[nodiscard]] std::string unknown_name(std::string_view what, std::string_view name,
                                       const std::vector<std::string>& known);

}  // namespace stagecraft
