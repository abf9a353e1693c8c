#include "costmodel/errors.h"

#include <new>

namespace stagecraft {

ErrorKind kind_of(const std::exception& error) {
  if (const auto* const own = dynamic_cast<const HasErrorKind*>(&error)) return own->kind();
  if (dynamic_cast<const std::invalid_argument*>(&error) != nullptr) return ErrorKind::BadInput;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return ErrorKind::OutOfMemory;
  return ErrorKind::Unexpected;
}

std::string unknown_name(std::string_view what, std::string_view name, const std::vector<std::string>& known) {
  std::string out = "unknown " + std::string(what) + " \"" + std::string(name) + "\", known are ";
  for (std::size_t i = 0; i < known.size(); ++i) out += (i ? ", " : "") + known[i];
  if (known.empty()) out += "none";
  return out;
}

}  // namespace stagecraft
