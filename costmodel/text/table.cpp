#include "costmodel/text/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string_view>

#include "costmodel/index.h"
#include "costmodel/text/number.h"

namespace stagecraft {
namespace {

/// The value of an environment variable; empty if it is not set.
std::string_view variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

constexpr std::size_t kGap = 1;
constexpr std::size_t kLeastCut = 12;
constexpr std::string_view kCut = "...";

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

std::size_t characters(std::string_view text) {
  return to_index(std::count_if(text.begin(), text.end(), begins_character));
}

/// Byte at which character number `n` begins.
std::size_t place_of(std::string_view text, std::size_t n) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (begins_character(text[i]) && n-- == 0) return i;
  }
  return text.size();
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Whether a number would be cut at this byte: half of 128 looks like another device.
bool divides_number(std::string_view text, std::size_t at) {
  return at > 0 && at < text.size() && is_digit(text[at - 1]) && is_digit(text[at]);
}

std::string cut(const std::string& text, std::size_t width) {
  const std::size_t all = characters(text);
  if (all <= width) return text;
  const std::size_t kept = width - kCut.size();
  const std::size_t half = (kept + 1) / 2;
  std::size_t front = place_of(text, half);
  std::size_t back = place_of(text, all - (kept - half));
  while (divides_number(text, front)) --front;
  while (divides_number(text, back)) ++back;
  return text.substr(0, front) + std::string(kCut) + text.substr(back);
}

std::size_t sum(const std::vector<std::size_t>& widths) {
  return std::accumulate(widths.begin(), widths.end(), kGap * (widths.size() - 1));
}

/// The columns of each part of the table, one part below the other.
std::vector<std::vector<std::size_t>> parts(const std::vector<std::size_t>& widths, std::size_t width) {
  std::vector<std::vector<std::size_t>> out{{0}};
  std::size_t used = widths[0];
  for (std::size_t c = 1; c < widths.size(); ++c) {
    if (used + kGap + widths[c] > width && out.back().size() > 1) {
      out.push_back({0});
      used = widths[0];
    }
    out.back().push_back(c);
    used += kGap + widths[c];
  }
  return out;
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

std::string table_text(const std::vector<TableColumn>& columns, const std::vector<std::vector<std::string>>& rows,
                       const Screen& screen, std::optional<std::size_t> best) {
  const auto limit = to_index(screen.width);
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    std::size_t widest = characters(columns[c].title);
    for (const auto& row : rows) widest = std::max(widest, characters(row[c]));
    widths.push_back(widest);
  }
  const std::size_t whole = sum(widths);
  const auto floor_of = [&](std::size_t c) { return std::max(kLeastCut, characters(columns[c].title)); };
  while (sum(widths) > limit) {
    std::size_t widest = columns.size();
    for (std::size_t c = 0; c < columns.size(); ++c) {
      if (!columns[c].can_be_cut || widths[c] <= floor_of(c)) continue;
      if (widest == columns.size() || widths[c] > widths[widest]) widest = c;
    }
    if (widest == columns.size()) break;
    --widths[widest];
  }

  std::string out;
  bool was_cut = false;
  for (const std::vector<std::size_t>& part : parts(widths, limit)) {
    const auto line = [&](const auto& cell_of, std::optional<Emphasis> emphasis) {
      std::string text;
      for (const std::size_t c : part) {
        const std::string cell = cut(cell_of(c), widths[c]);
        was_cut = was_cut || cell != cell_of(c);
        if (c != part.front()) text.append(kGap, ' ');
        const std::string padding(widths[c] - std::min(widths[c], characters(cell)), ' ');
        text += columns[c].left ? cell + padding : padding + cell;
      }
      text.erase(text.find_last_not_of(' ') + 1);
      out += (emphasis ? emphasized(text, *emphasis, screen.colour) : text) + "\n";
    };
    line([&](std::size_t c) -> const std::string& { return columns[c].title; }, Emphasis::Heading);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      line([&](std::size_t c) -> const std::string& { return rows[r][c]; },
           r == best ? std::optional(Emphasis::Best) : std::nullopt);
    }
  }
  if (was_cut)
    out += "(... is cut to " + std::to_string(screen.width) + " columns, COLUMNS=" + std::to_string(whole) +
           " shows all)\n";
  return out;
}

std::string list_lines(const std::string& text, const std::string& indent, int width) {
  constexpr std::string_view kSeparator = ", ";
  std::string out;
  std::string line;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t found = text.find(kSeparator, at);
    const std::size_t end = found == std::string::npos ? text.size() : found + 1;  // with the comma
    const std::string item = text.substr(at, end - at);
    at = found == std::string::npos ? end : found + kSeparator.size();
    if (!line.empty() && indent.size() + line.size() + 1 + item.size() > to_index(width)) {
      out += indent + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + item;
  }
  return line.empty() ? out : out + indent + line + "\n";
}

std::string beginning(const std::string& text, int width) { return text.substr(0, place_of(text, to_index(width))); }

std::string format_ranges(const std::vector<int>& numbers, const std::string& separator) {
  std::string out;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (last - i < 2) last = i;
    out += (out.empty() ? "" : separator) + std::to_string(numbers[i]);
    if (last > i) out += "-" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return out;
}

std::string replicas_text(const std::vector<int>& replicas, std::size_t width) {
  const std::string out = fmt::format("{}", fmt::join(replicas, "-"));
  return out.size() > width ? fmt::format("{} stages", replicas.size()) : out;
}

}  // namespace stagecraft
