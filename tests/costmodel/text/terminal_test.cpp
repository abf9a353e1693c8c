#include "costmodel/text/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/support/pseudo_terminal.h"

namespace stagecraft {
namespace {

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
