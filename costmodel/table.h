#pragma once

#include <string>
#include <vector>

namespace stagecraft {

/// A column of a table for people. `can_be_cut`: where the table is too wide, the middle of long cells becomes "...".
struct TableColumn {
  std::string title;
  bool left = false;  ///< aligned left; right otherwise
  bool can_be_cut = false;
};

/// `rows` of one cell a column under the titles, each column as wide as its widest cell, no line longer than `width`
/// and none with spaces at its end. A table that would be wider first cuts the columns that can be cut, the widest
/// first and none below 12, and says so in a line behind the table; then it goes on below with the columns that are
/// left, behind the first one again. Widths count characters of UTF-8. A column wider than `width` stays so.
[[nodiscard]] std::string table_text(const std::vector<TableColumn>& columns,
                                     const std::vector<std::vector<std::string>>& rows, int width);

/// Characters in a line of what a tool prints for people, on standard error: the environment variable COLUMNS where it
/// is a number of at least 20, else the terminal's, else 80.
[[nodiscard]] int line_width();

/// Numbers in the order given, where runs of at least three that rise by one are a range: "0-511,1024".
[[nodiscard]] std::string format_ranges(const std::vector<int>& numbers, const std::string& separator = ",");

}  // namespace stagecraft
