#include "costmodel/text/progress.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"

namespace stagecraft {
namespace {

constexpr std::chrono::milliseconds kBetween(100);  ///< redrawings

}  // namespace

ProgressLine::ProgressLine(std::function<Clock::time_point()> now) : visible_(shows_progress()), now_(std::move(now)) {}

ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

void ProgressLine::show(const std::string& text) {
  if (!visible_) return;
  const Clock::time_point now = now_();
  if (shown_ && now - last_ < kBetween) return;
  last_ = now;
  shown_ = true;
  // What reaches into the next line would stay there.
  std::fprintf(stderr, "\r\033[K%s", beginning(text, line_width() - 1).c_str());
  std::fflush(stderr);
}

LiveProgress::LiveProgress(std::function<std::string(Seconds passed)> text, Seconds quiet) : text_(std::move(text)) {
  if (line_.visible()) thread_ = std::jthread([this, quiet](const std::stop_token& stop) { redraw(stop, quiet); });
}

void LiveProgress::redraw(const std::stop_token& stop, Seconds quiet) {
  const auto begin = ProgressLine::Clock::now();
  const auto wait = [&](auto time) {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, stop, time, [] { return false; });
    return !stop.stop_requested();
  };
  bool goes_on =
      wait(std::chrono::duration_cast<ProgressLine::Clock::duration>(std::chrono::duration<double>(quiet.value)));
  for (; goes_on; goes_on = wait(kBetween)) {
    const std::string text = text_(Seconds(std::chrono::duration<double>(ProgressLine::Clock::now() - begin).count()));
    if (!text.empty()) line_.show(text);
  }
}

void LiveProgress::end() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
  line_.clear();
}

ShareProgress::ShareProgress(std::string what, Seconds quiet)
    : line_([this, what = std::move(what)](
                Seconds passed) { return share_text(what, done_.load(std::memory_order_relaxed), passed); },
            quiet) {}

StepProgress::StepProgress(std::string what, Seconds quiet)
    : line_(
          [this, what = std::move(what)](Seconds passed) {
            const std::lock_guard lock(mutex_);
            return step_text(what, step_, passed);
          },
          quiet) {}

void StepProgress::tell(const std::string& step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
}

std::string time_text(Seconds passed, const std::optional<Seconds>& limit) {
  constexpr Seconds kShort(10);
  if (!limit) return duration_text(passed);
  if (*limit < kShort) return fmt::format("{:.1f} of {:.2g} s", passed.value, limit->value);
  return duration_text(passed) + " of " + duration_text(*limit);
}

std::string step_text(const std::string& what, const std::string& step, Seconds passed) {
  return step.empty() ? what : fmt::format("{}: {}, {}", what, step, time_text(passed));
}

std::string share_text(const std::string& what, double done, Seconds passed) {
  constexpr double kLeastShare = 0.01;
  if (done <= 0) return what;
  std::string out = fmt::format("{}: {:.0f} %", what, done * 100);
  if (done >= kLeastShare && done < 1) out += fmt::format(", {} left", duration_text(passed * ((1 - done) / done)));
  return out;
}

}  // namespace stagecraft
