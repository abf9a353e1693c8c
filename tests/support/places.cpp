#include "tests/support/places.h"

#include <cstdlib>
#include <filesystem>

namespace stagecraft {

std::string program_folder() {
  if (const char* const given = std::getenv("STAGECRAFT_BIN")) return given;
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

std::string source_folder() {
  const char* const given = std::getenv("STAGECRAFT_SOURCE");
  return given ? given : STAGECRAFT_SOURCE_DIR;
}

}  // namespace stagecraft
