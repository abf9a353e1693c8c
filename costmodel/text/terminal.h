#pragma once

#include <string>

namespace stagecraft {

/// Whether the open file `descriptor` is a terminal that understands escape sequences: one with TERM=dumb does not.
[[nodiscard]] bool is_terminal(int descriptor);

/// Whether standard error shows progress: it is_terminal, and no CI job's. CI services give jobs a terminal too, keep
/// all that is written to it, and set the variable CI.
[[nodiscard]] bool shows_progress();

/// Whether text for that file has colours: it is_terminal, and NO_COLOR is not set or empty (https://no-color.org).
[[nodiscard]] bool shows_colour(int descriptor);

/// What text stands out for. Few things do, and none by its colour alone.
enum class Emphasis { Heading, Best, Error, Warning };

/// `text` with its colour, if `colour`; otherwise, or if it is empty, as it is.
[[nodiscard]] std::string emphasized(const std::string& text, Emphasis emphasis, bool colour);

/// Where a table is printed.
struct Screen {
  int width = 80;       ///< of a line, in characters
  bool colour = false;  ///< whether it shows colours

  /// Of this width, without colours. A width is a screen.
  Screen(int columns) : width(columns) {}  // NOLINT(google-explicit-constructor)
  Screen(int columns, bool has_colour) : width(columns), colour(has_colour) {}
};

/// Line width of tables on standard error, in characters: the environment variable COLUMNS if it is a number of at
/// least 20, else the terminal's, else 80.
[[nodiscard]] int line_width();

/// Standard output: line_width and shows_colour.
[[nodiscard]] Screen output_screen();
/// Standard error, likewise.
[[nodiscard]] Screen error_screen();

}  // namespace stagecraft
