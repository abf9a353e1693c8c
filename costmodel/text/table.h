#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/text/terminal.h"

namespace stagecraft {

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
