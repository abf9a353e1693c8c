#include "costmodel/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
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

/// What `work` writes if standard error is a terminal.
template <class Work>
std::string on_a_terminal(Work work) {
  const int host = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (host < 0 || ::grantpt(host) != 0 || ::unlockpt(host) != 0) throw std::runtime_error("no terminal");
  const int terminal = ::open(::ptsname(host), O_RDWR | O_NOCTTY);
  if (terminal < 0) throw std::runtime_error("no terminal");
  {
    const StandardError to(terminal);
    work();
  }
  ::close(terminal);
  // Once the other end is closed, read returns what is left and then fails.
  std::string out;
  std::array<char, 256> part{};
  for (ssize_t count = 0; (count = ::read(host, part.data(), part.size())) > 0;)
    out.append(part.data(), static_cast<std::size_t>(count));
  ::close(host);
  return out;
}

// Returns to the start of the line and clears it.
const std::string kClear = "\r\033[K";

TEST(ProgressLine, IsWrittenOverAndTakenAway) {
  EXPECT_EQ(on_a_terminal([] {
              ProgressLine line;
              EXPECT_TRUE(line.visible());
              line.show("1 of 3");
            }),
            kClear + "1 of 3" + kClear);
}

TEST(ProgressLine, LeavesNothingWhereNothingWasShown) {
  EXPECT_EQ(on_a_terminal([] { const ProgressLine line; }), "");
}

TEST(ProgressLine, IsWrittenAtMostTenTimesASecond) {
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  const std::string out = on_a_terminal([] {
    ProgressLine line;
    for (int i = 0; i < 1000; ++i) line.show("x");
  });
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  const auto shown = std::count(out.begin(), out.end(), 'x');
  EXPECT_GE(shown, 1);
  EXPECT_LE(static_cast<double>(shown), 1 + 10 * seconds);
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
