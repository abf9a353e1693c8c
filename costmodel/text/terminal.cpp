#include "costmodel/text/terminal.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace stagecraft {
namespace {

/// The value of an environment variable; empty if it is not set.
std::string_view variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

}  // namespace

bool is_terminal(int descriptor) { return ::isatty(descriptor) == 1 && variable("TERM") != "dumb"; }

bool shows_progress() { return is_terminal(STDERR_FILENO) && variable("CI").empty(); }

}  // namespace stagecraft
