#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

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

/// A column of a printed table. `can_be_cut`: if the table is too wide, the middle of long cells becomes "...",
/// which divides no number.
struct TableColumn {
  std::string title;
  bool left = false;  ///< aligned left; right otherwise
  bool can_be_cut = false;
};

/// `rows` of one cell per column under the titles, each column as wide as its widest cell, no line longer than the
/// screen's and none with trailing spaces. A table that would be wider first cuts the columns that can be cut, the
/// widest first and none below 12, and says so in a line after the table; then it continues below with the remaining
/// columns, with the first one repeated. Widths count characters of UTF-8. A column wider than the screen keeps its
/// width. On a screen with colours, the titles and row `best` stand out.
[[nodiscard]] std::string table_text(const std::vector<TableColumn>& columns,
                                     const std::vector<std::vector<std::string>>& rows, const Screen& screen,
                                     std::optional<std::size_t> best = {});

/// The items of `text`, which are separated by ", ", in indented lines that end with a line feed and have at most
/// `width` bytes, if no item is longer.
[[nodiscard]] std::string list_lines(const std::string& text, const std::string& indent, int width);

/// The first characters of `text`, which is UTF-8: at most `width` of them.
[[nodiscard]] std::string beginning(const std::string& text, int width);

/// Numbers in the given order, with runs of at least three consecutive ones as a range: "0-511,1024".
[[nodiscard]] std::string format_ranges(const std::vector<int>& numbers, const std::string& separator = ",");

/// In tables of plans on a terminal.
inline constexpr std::size_t kReplicasWidth = 18;

/// "2-1-4": the replicas of each stage; or "24 stages", where that is longer than `width`.
[[nodiscard]] std::string replicas_text(const std::vector<int>& replicas,
                                        std::size_t width = std::numeric_limits<std::size_t>::max());

}  // namespace stagecraft
