#include "executor/launch/stop_signals.h"

#include <unistd.h>

#include <ctime>
#include <utility>

namespace stagecraft::launch {

StopSignals::StopSignals(std::function<Clock::time_point()> now) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM}) sigaddset(&set, number);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  waiting_ = std::jthread([this, set, now = std::move(now)](const std::stop_token& done) {
    Clock::time_point first;
    while (!done.stop_requested()) {
      constexpr long kLookEvery = 50'000'000;  // nanoseconds
      const timespec time{0, kLookEvery};
      const int number = sigtimedwait(&set, nullptr, &time);
      if (number < 0) continue;
      if (number_ == 0) {
        first = now();
        number_ = number;
      } else if (now() - first >= kOneRequest) {
        ::_exit(128 + number);  // other threads may be in calls that do not return
      }
    }
  });
}

StopSignals::~StopSignals() {
  waiting_.request_stop();
  waiting_.join();
  if (!asked()) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace stagecraft::launch
