#pragma once

#include <string>
#include <vector>

namespace stagecraft {

/// `names` as messages list them: "a, b, c".
inline std::string known_names(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

/// The names of a table's entries, in its order.
template <class Entry>
std::string known_names(const std::vector<Entry>& table) {
  std::vector<std::string> names;
  for (const Entry& entry : table) names.push_back(entry.name);
  return known_names(names);
}

}  // namespace stagecraft
