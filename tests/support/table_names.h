#pragma once

#include <algorithm>
#include <string>
#include <vector>

// For tests that run once for each entry of a table, with its name as their parameter.

namespace stagecraft::testing {

/// The names of a table's entries, in its order.
template <class Entry>
std::vector<std::string> names_of(const std::vector<Entry>& table) {
  std::vector<std::string> out;
  for (const Entry& entry : table) out.push_back(entry.name);
  return out;
}

/// Names such a test after its entry; GoogleTest allows no "-".
struct AfterEntry {
  template <class Info>
  std::string operator()(const Info& tested) const {
    std::string out = tested.param;
    std::ranges::replace(out, '-', '_');
    return out;
  }
};

}  // namespace stagecraft::testing
