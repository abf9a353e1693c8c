#include "costmodel/text/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace stagecraft {

ProgressLine::ProgressLine(std::function<Clock::time_point()> now)
    : terminal_(::isatty(STDERR_FILENO) == 1), now_(std::move(now)) {}

ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

void ProgressLine::show(const std::string& text) {
  if (!terminal_) return;
  const Clock::time_point now = now_();
  if (shown_ && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  shown_ = true;
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
}

}  // namespace stagecraft
