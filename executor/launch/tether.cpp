#include "executor/launch/tether.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>

#include "executor/launch/exit_status.h"
#include "executor/launch/rendezvous.h"

namespace stagecraft::launch {
namespace {

/// The signal named by a line, or 0.
int signal_of(const std::string& line) {
  if (line == "TERM") return SIGTERM;
  return line == "INT" ? SIGINT : 0;
}

void obey(const std::string& name, const std::stop_token& done) {
  constexpr int kLookEvery = 50;  // milliseconds
  std::string line;
  while (!done.stop_requested()) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (::poll(&input, 1, kLookEvery) <= 0) continue;
    char letter = 0;
    if (::read(STDIN_FILENO, &letter, 1) != 1) {
      const std::string text = fmt::format("stagecraft: {}: the process that started this run has exited\n", name);
      [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
      ::_exit(kPeerFailed);  // other threads may be in calls that do not return
    }
    if (letter != '\n') {
      line += letter;
      continue;
    }
    if (const int number = signal_of(line); number != 0) ::kill(::getpid(), number);
    line.clear();
  }
}

}  // namespace

Tether::Tether(std::string name) {
  // Other threads receive the signals.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  waiting_ = std::jthread([name = std::move(name)](const std::stop_token& done) { obey(name, done); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Tether::~Tether() = default;

}  // namespace stagecraft::launch
