#include "costmodel/text/table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>
#include <random>
#include <sstream>

#include "tests/support/pseudo_terminal.h"

namespace stagecraft {
namespace {

TEST(FormatRanges, JoinsRunsOfThreeAndMore) {
  EXPECT_EQ(format_ranges({}), "");
  EXPECT_EQ(format_ranges({7}), "7");
  EXPECT_EQ(format_ranges({0, 1}), "0,1");
  EXPECT_EQ(format_ranges({0, 1, 2}), "0-2");
  EXPECT_EQ(format_ranges({3, 2, 1, 0}), "3,2,1,0");  // replica j runs on the j-th device
  EXPECT_EQ(format_ranges({0, 3, 4, 5, 9}, ", "), "0, 3-5, 9");
  std::vector<int> many(512);
  std::iota(many.begin(), many.end(), 0);
  many.push_back(1024);
  EXPECT_EQ(format_ranges(many), "0-511,1024");
}

TEST(TableText, AlignsColumns) {
  EXPECT_EQ(table_text({{.title = "n"}, {.title = "name", .left = true}}, {{"1", "a"}, {"22", "\xc3\xa4pfel"}}, 80),
            " n name\n"
            " 1 a\n"
            "22 \xc3\xa4pfel\n");
}

// 3 + 1 + 26 columns: 10 too many for 20, so the text keeps 16 characters: 7 before "..." and 6 after.
TEST(TableText, CutsTheMiddleOfWhatCanBeCutAndSaysSo) {
  EXPECT_EQ(table_text({{.title = "sum"}, {.title = "text", .left = true, .can_be_cut = true}},
                       {{"1", "abcdefghijklmnopqrstuvwxyz"}}, 20),
            "sum text\n"
            "  1 abcdefg...uvwxyz\n"
            "(... is cut to 20 columns, COLUMNS=30 shows all)\n");
}

// 3 + 1 + 30 columns for 20: of 16, 7 before "..." and 6 after would be "12, 256" of 2560 and "31, 77" of 131.
TEST(TableText, DoesNotCutNumbersInTwo) {
  EXPECT_EQ(table_text({{.title = "sum"}, {.title = "text", .left = true, .can_be_cut = true}},
                       {{"1", "12, 2560, 8, 9, 10, 11, 131, 77"}}, 20),
            "sum text\n"
            "  1 12, ..., 77\n"
            "(... is cut to 20 columns, COLUMNS=35 shows all)\n");
}

TEST(TableText, ContinuesBelowWithTheFirstColumnRepeated) {
  EXPECT_EQ(table_text({{.title = "stage"}, {.title = "forward"}, {.title = "backward"}, {.title = "fits"}},
                       {{"0", "1 ms", "2 ms", "yes"}, {"1", "3 ms", "4 ms", "no"}}, 20),
            "stage forward\n"
            "    0    1 ms\n"
            "    1    3 ms\n"
            "stage backward fits\n"
            "    0     2 ms  yes\n"
            "    1     4 ms   no\n");
}

// As wide as without colours: escape sequences take no place. The last column has no spaces after it to colour.
TEST(TableText, ColoursTitlesAndTheBestRow) {
  const std::vector<TableColumn> columns{{.title = "n"}, {.title = "name", .left = true}};
  const std::vector<std::vector<std::string>> rows{{"1", "a"}, {"22", "longer"}};
  EXPECT_EQ(table_text(columns, rows, {9, true}, 1),
            "\033[1m n name\033[0m\n"
            " 1 a\n"
            "\033[32m22 longer\033[0m\n");
  EXPECT_EQ(table_text(columns, rows, {9, false}, 1),
            " n name\n"
            " 1 a\n"
            "22 longer\n");
}

TEST(TableText, ColoursEachPartOfATableThatContinuesBelow) {
  EXPECT_EQ(table_text({{.title = "stage"}, {.title = "forward"}, {.title = "backward"}},
                       {{"0", "1 ms", "2 ms"}, {"1", "3 ms", "4 ms"}}, {20, true}, 0),
            "\033[1mstage forward\033[0m\n"
            "\033[32m    0    1 ms\033[0m\n"
            "    1    3 ms\n"
            "\033[1mstage backward\033[0m\n"
            "\033[32m    0     2 ms\033[0m\n"
            "    1     4 ms\n");
}

TEST(Beginning, CountsCharacters) {
  EXPECT_EQ(beginning("\u00e4pfel", 2), "\u00e4p");
  EXPECT_EQ(beginning("short", 9), "short");
  EXPECT_EQ(beginning("none", 0), "");
}

TEST(TableText, KeepsEveryLineWithinTheWidth) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<TableColumn> columns(1 + random() % 9);
    for (TableColumn& column : columns) {
      column = {std::string(random() % 10, 't'), random() % 2 == 0, random() % 2 == 0};
    }
    std::vector<std::vector<std::string>> rows(random() % 4, std::vector<std::string>(columns.size()));
    for (auto& row : rows) {
      for (std::size_t c = 0; c < row.size(); ++c)
        row[c] = std::string(random() % (columns[c].can_be_cut ? 99 : 20), 'x');
    }
    std::istringstream text(table_text(columns, rows, 50));
    for (std::string line; std::getline(text, line);) EXPECT_LE(line.size(), 50U) << "seed " << seed << ": " << line;
  }
}

TEST(ListLines, BreakAfterCommas) {
  EXPECT_EQ(list_lines("one 1 %, two 2 %, three", "  ", 80), "  one 1 %, two 2 %, three\n");
  EXPECT_EQ(list_lines("one 1 %, two 2 %, three", "  ", 18), "  one 1 %,\n  two 2 %, three\n");
  EXPECT_EQ(list_lines("one 1 %, two 2 %, three", "", 3), "one 1 %,\ntwo 2 %,\nthree\n");
  EXPECT_EQ(list_lines("", "  ", 80), "");
}

TEST(LineWidth, IsWhatColumnsSays) {
  ::setenv("COLUMNS", "132", 1);
  EXPECT_EQ(line_width(), 132);
  for (const char* text : {"", "wide", "-5", "3"}) {
    ::setenv("COLUMNS", text, 1);
    EXPECT_GE(line_width(), 20) << text;
    EXPECT_NE(line_width(), 3) << text;
  }
  ::unsetenv("COLUMNS");
}

TEST(ReplicasText, JoinsThemOrCountsStages) {
  EXPECT_EQ(replicas_text({}), "");
  EXPECT_EQ(replicas_text({3}), "3");
  EXPECT_EQ(replicas_text({2, 1, 16}), "2-1-16");
  EXPECT_EQ(replicas_text({2, 1, 16}, 6), "2-1-16");
  EXPECT_EQ(replicas_text({2, 1, 16}, 5), "3 stages");
}

class ColoursOnATerminal : public ::testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("NO_COLOR");
    ::setenv("TERM", "xterm", 1);
    if (!terminal_.is_open()) GTEST_SKIP() << "this machine has no pseudo-terminals (/dev/pts)";
  }
  void TearDown() override { ::unsetenv("NO_COLOR"); }

  testing::PseudoTerminal terminal_;
};

TEST_F(ColoursOnATerminal, AreForTerminals) {
  EXPECT_TRUE(is_terminal(terminal_.descriptor()));
  EXPECT_TRUE(shows_colour(terminal_.descriptor()));
  const int file = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  EXPECT_FALSE(shows_colour(file));
  ::close(file);
}

// no-color.org: "when present and not an empty string (regardless of its value)".
TEST_F(ColoursOnATerminal, CanBeTurnedOff) {
  for (const char* value : {"1", "0", "false"}) {
    ::setenv("NO_COLOR", value, 1);
    EXPECT_FALSE(shows_colour(terminal_.descriptor())) << value;
  }
  EXPECT_TRUE(is_terminal(terminal_.descriptor()));
  ::setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(shows_colour(terminal_.descriptor()));
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(shows_colour(terminal_.descriptor()));
}

TEST(Emphasized, EndsWhereItsTextEnds) {
  EXPECT_EQ(emphasized("step", Emphasis::Heading, true), "\033[1mstep\033[0m");
  EXPECT_EQ(emphasized("best", Emphasis::Best, true), "\033[32mbest\033[0m");
  EXPECT_EQ(emphasized("error", Emphasis::Error, true), "\033[1;31merror\033[0m");
  EXPECT_EQ(emphasized("warning", Emphasis::Warning, true), "\033[1;33mwarning\033[0m");
  EXPECT_EQ(emphasized("", Emphasis::Heading, true), "");
  EXPECT_EQ(emphasized("step", Emphasis::Heading, false), "step");
}

}  // namespace
}  // namespace stagecraft
