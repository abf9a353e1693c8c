#pragma once

#include <string>
#include <vector>

namespace stagecraft {

/// `words` as a POSIX shell command line.
[[nodiscard]] std::string shell_line(const std::vector<std::string>& words);

/// The command line of a tool, as typed: "stagecraft plan graph.json", where `argv` may begin with a path.
[[nodiscard]] std::string command_line(const std::string& verb, int argc, const char* const* argv);

}  // namespace stagecraft
