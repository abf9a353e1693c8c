#pragma once

#include <string>

namespace stagecraft {

/// A document and the file that it is from.
template <class T>
struct FromFile {
  std::string file;
  T value;
};

}  // namespace stagecraft
