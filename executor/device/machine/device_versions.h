#pragma once

#include <map>
#include <string>

namespace stagecraft::device {

/// Versions of the device libraries that this build uses, by name: "cuda runtime", "cupti", "nccl" as "13.0", "2.28.3".
/// Empty if built without CUDA (STAGECRAFT_WITH_CUDA). Needs neither a device nor a driver. Throws DeviceError naming
/// the call that failed.
[[nodiscard]] std::map<std::string, std::string> device_library_versions();

/// The versions of the same libraries whose headers this build was compiled with. Loads nothing and calls none of them.
[[nodiscard]] std::map<std::string, std::string> compiled_device_library_versions();

}  // namespace stagecraft::device
