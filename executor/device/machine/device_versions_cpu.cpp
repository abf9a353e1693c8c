#include "executor/device/machine/device_versions.h"

namespace stagecraft::device {

std::map<std::string, std::string> device_library_versions() { return {}; }

std::map<std::string, std::string> compiled_device_library_versions() { return {}; }

}  // namespace stagecraft::device
