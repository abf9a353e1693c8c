#include <iostream>

#include "executor/device/machine/device_versions.h"

int main() {
  const auto versions = stagecraft::device::device_library_versions();
  for (const auto& [library, version] : versions) std::cout << library << " " << version << "\n";
  return versions.size() == 3 ? 0 : 1;
}
