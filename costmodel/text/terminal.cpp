#include "costmodel/text/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string_view>

#include "costmodel/text/number.h"

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

bool shows_colour(int descriptor) { return is_terminal(descriptor) && variable("NO_COLOR").empty(); }

std::string emphasized(const std::string& text, Emphasis emphasis, bool colour) {
  if (!colour || text.empty()) return text;
  const char* begin = "\033[1m";  // bold
  switch (emphasis) {
    case Emphasis::Heading:
      break;
    case Emphasis::Best:
      begin = "\033[32m";  // green
      break;
    case Emphasis::Error:
      begin = "\033[1;31m";  // bold red
      break;
    case Emphasis::Warning:
      begin = "\033[1;33m";  // bold yellow
      break;
  }
  return begin + text + "\033[0m";
}

int line_width() {
  constexpr int kUsual = 80;
  constexpr int kLeast = 20;
  if (const char* text = std::getenv("COLUMNS")) {
    const std::optional<int> columns = number_in<int>(text);
    if (columns && *columns >= kLeast) return *columns;
  }
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= kLeast) return size.ws_col;
  return kUsual;
}

Screen output_screen() { return {line_width(), shows_colour(STDOUT_FILENO)}; }

Screen error_screen() { return {line_width(), shows_colour(STDERR_FILENO)}; }

}  // namespace stagecraft
