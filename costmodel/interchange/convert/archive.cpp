#include "costmodel/interchange/convert/archive.h"

#include <fstream>

namespace stagecraft::interchange {

bool is_archive(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string first(4, '\0');
  return in.read(first.data(), 4) && first == "PK\3\4";
}

}  // namespace stagecraft::interchange
