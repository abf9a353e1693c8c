#pragma once

#include <stdexcept>
#include <string>

namespace stagecraft::testing {

/// The message of the std::invalid_argument that `call` throws; empty if it throws none.
template <class Call>
std::string refused(Call call) {
  try {
    (void)call();
  } catch (const std::invalid_argument& e) { return e.what(); }
  return "";
}

}  // namespace stagecraft::testing
