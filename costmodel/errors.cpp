#include "costmodel/errors.h"

namespace stagecraft {

std::string unknown_name(std::string_view what, std::string_view name, const std::vector<std::string>& known) {
  std::string out = "unknown " + std::string(what) + " \"" + std::string(name) + "\", known are ";
  for (std::size_t i = 0; i < known.size(); ++i) out += (i ? ", " : "") + known[i];
  if (known.empty()) out += "none";
  return out;
}

}  // namespace stagecraft
