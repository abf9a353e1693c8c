#pragma once

#include <string>

namespace stagecraft {

/// The folder of the programs that a test starts: STAGECRAFT_BIN, else the test's own, where the build puts all of
/// them.
[[nodiscard]] std::string program_folder();

/// The root of the sources: STAGECRAFT_SOURCE, else where they were when this was built.
[[nodiscard]] std::string source_folder();

}  // namespace stagecraft
