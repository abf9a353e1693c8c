#include "costmodel/text/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace stagecraft {
namespace {

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
    host_ = ::posix_openpt(O_RDWR | O_NOCTTY);
    if (host_ >= 0 && ::grantpt(host_) == 0 && ::unlockpt(host_) == 0)
      terminal_ = ::open(::ptsname(host_), O_RDWR | O_NOCTTY);
    if (terminal_ < 0) GTEST_SKIP() << "this machine has no pseudo-terminals (/dev/pts)";
  }
  void TearDown() override {
    if (host_ >= 0) ::close(host_);
  }
  /// What `work` writes to standard error, which is a terminal. Call once.
  template <class Work>
  std::string written_by(Work work) const {
    {
      const StandardError to(terminal_);
      work();
    }
    ::close(terminal_);
    // Once the other end is closed, read returns what is left and then fails.
    std::string out;
    std::array<char, 256> part{};
    for (ssize_t count = 0; (count = ::read(host_, part.data(), part.size())) > 0;)
      out.append(part.data(), static_cast<std::size_t>(count));
    return out;
  }

 private:
  int host_ = -1;
  int terminal_ = -1;
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

TEST(ProgressLine, SaysNothingToAFile) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    const StandardError to(::fileno(file));
    ProgressLine line;
    EXPECT_FALSE(line.visible());
    line.show("1 of 3");
  }
  std::fseek(file, 0, SEEK_END);
  EXPECT_EQ(std::ftell(file), 0);
  std::fclose(file);
}

}  // namespace
}  // namespace stagecraft
