#include "costmodel/text/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <latch>
#include <string>

#include "costmodel/text/table.h"
#include "tests/support/pseudo_terminal.h"

namespace stagecraft {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

/// Redirects standard error to another file for the lifetime of this object.
class StandardError {
 public:
  explicit StandardError(int file) : before_(::dup(STDERR_FILENO)) {
    std::fflush(stderr);
    ::dup2(file, STDERR_FILENO);
  }
  ~StandardError() {
    std::fflush(stderr);
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }
  StandardError(const StandardError&) = delete;
  StandardError& operator=(const StandardError&) = delete;

 private:
  int before_;
};

class ProgressOnATerminal : public ::testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("CI");
    ::unsetenv("COLUMNS");
    ::setenv("TERM", "xterm", 1);
    if (!terminal_.is_open()) GTEST_SKIP() << "this machine has no pseudo-terminals (/dev/pts)";
  }
  /// What `work` writes to standard error, which is a terminal. Call once.
  template <class Work>
  std::string written_by(Work work) {
    {
      const StandardError to(terminal_.descriptor());
      work();
    }
    return terminal_.written();
  }

  testing::PseudoTerminal terminal_{30};
};

// Returns to the start of the line and clears it.
const std::string kClear = "\r\033[K";

TEST_F(ProgressOnATerminal, IsOverwrittenAndRemoved) {
  EXPECT_EQ(written_by([] {
              ProgressLine line;
              EXPECT_TRUE(line.visible());
              line.show("1 of 3");
            }),
            kClear + "1 of 3" + kClear);
}

TEST_F(ProgressOnATerminal, MakesRoomForALineThatStays) {
  EXPECT_EQ(written_by([] {
              ProgressLine line;
              line.show("1 of 3");
              line.clear();
              line.clear();
              std::fputs("half\n", stderr);
              line.show("2 of 3");
            }),
            kClear + "1 of 3" + kClear + "half\r\n" + kClear + "2 of 3" + kClear);
}

TEST_F(ProgressOnATerminal, LeavesNothingWhereNothingWasShown) {
  EXPECT_EQ(written_by([] { const ProgressLine line; }), "");
}

TEST_F(ProgressOnATerminal, IsWrittenAtMostTenTimesASecond) {
  EXPECT_EQ(written_by([] {
              ProgressLine::Clock::time_point now{};
              ProgressLine line([&] { return now; });
              line.show("at 0 ms");
              now += std::chrono::milliseconds(99);
              line.show("at 99 ms");
              now += std::chrono::milliseconds(1);
              line.show("at 100 ms");
              now += std::chrono::milliseconds(99);
              line.show("at 199 ms");
            }),
            kClear + "at 0 ms" + kClear + "at 100 ms" + kClear);
}

// One column stays free: in the last one, some terminals begin a new line.
TEST_F(ProgressOnATerminal, IsCutToTheWidth) {
  EXPECT_EQ(written_by([] { ProgressLine().show("0123456789012345678901234567\u00e9 and more"); }),
            kClear + "0123456789012345678901234567\u00e9" + kClear);
}

TEST_F(ProgressOnATerminal, IsNotShownWhereNobodyReadsIt) {
  EXPECT_EQ(written_by([] {
              EXPECT_TRUE(shows_progress());
              ::setenv("CI", "true", 1);
              EXPECT_FALSE(shows_progress());
              ProgressLine().show("in a CI job");
              ::unsetenv("CI");
              ::setenv("TERM", "dumb", 1);
              EXPECT_FALSE(shows_progress());
              ProgressLine().show("on a dumb terminal");
            }),
            "");
}

TEST_F(ProgressOnATerminal, IsRedrawnMeanwhileAndRemovedBeforeResults) {
  std::latch drawn(2);
  const std::string written = written_by([&] {
    LiveProgress line(
        [&, times = 0](Seconds passed) mutable {
          EXPECT_GE(passed, Seconds(0));
          if (++times <= 2) drawn.count_down();
          return times < 2 ? "first" : "then";
        },
        Seconds(0));
    drawn.wait();  // the work, which need not call anything
    line.end();
    line.end();
    std::fputs("result\n", stderr);
  });
  EXPECT_THAT(written, StartsWith(kClear + "first" + kClear));
  EXPECT_THAT(written, EndsWith(kClear + "result\r\n"));
  EXPECT_EQ(testing::shown_after(written), "result\n");
}

TEST_F(ProgressOnATerminal, IsNotShownForShortWork) {
  EXPECT_EQ(written_by([] { const LiveProgress line([](Seconds) { return "too early"; }, Seconds(1000)); }), "");
}

TEST_F(ProgressOnATerminal, IsGoneAfterAnError) {
  std::latch drawn(1);
  const std::string written = written_by([&] {
    try {
      const LiveProgress line(
          [&, first = true](Seconds) mutable {
            if (first) drawn.count_down();
            first = false;
            return "working";
          },
          Seconds(0));
      drawn.wait();
      throw 1;
    } catch (int) { std::fputs("error\n", stderr); }
  });
  EXPECT_EQ(testing::shown_after(written), "error\n");
}

TEST(ProgressLine, SaysNothingToAFile) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    const StandardError to(::fileno(file));
    ProgressLine line;
    EXPECT_FALSE(line.visible());
    line.show("1 of 3");
    const LiveProgress live([](Seconds) { return "2 of 3"; }, Seconds(0));
    ShareProgress share("predicting", Seconds(0));
    share.tell(0.5);
    StepProgress steps("proving", Seconds(0));
    steps.tell("no deadlock");
  }
  std::fseek(file, 0, SEEK_END);
  EXPECT_EQ(std::ftell(file), 0);
  std::fclose(file);
}

TEST(StepText, NamesTheStep) {
  EXPECT_EQ(step_text("proving", "no deadlock", Seconds(12)), "proving: no deadlock, 12 s");
  EXPECT_EQ(step_text("proving", "", Seconds(12)), "proving");
}

// A quarter took 5 s, so the other three take 15 s.
TEST(ShareText, GivesTheTimeLeftInProportion) {
  EXPECT_EQ(share_text("predicting", 0.25, Seconds(5)), "predicting: 25 %, 15 s left");
  EXPECT_EQ(share_text("predicting", 0, Seconds(5)), "predicting");
  EXPECT_EQ(share_text("predicting", 0.009, Seconds(5)), "predicting: 1 %");
  EXPECT_EQ(share_text("predicting", 1, Seconds(5)), "predicting: 100 %");
}

}  // namespace
}  // namespace stagecraft
