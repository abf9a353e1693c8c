#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "executor/channel_checks.h"
#include "executor/meeting_store.h"
#include "executor/rendezvous.h"

namespace stagecraft {
namespace {

using Clock = std::chrono::steady_clock;

/// SIGINT, SIGTERM and SIGCHLD are taken by waiting for them, by this thread and those it starts, until the end.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&set_);
    for (const int number : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set_, number);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  [[nodiscard]] const sigset_t& before() const { return before_; }
  /// The next of them, or 0 if none comes in time.
  [[nodiscard]] int next(std::chrono::milliseconds longest) const {
    const timespec time{longest.count() / 1000, longest.count() % 1000 * 1000000};
    const int number = sigtimedwait(&set_, nullptr, &time);
    return number < 0 ? 0 : number;
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// Starts one rank. Between fork and exec only what is safe after a fork in a program with threads.
pid_t start(std::vector<std::string> arguments, const std::map<std::string, std::string>& environment,
            const sigset_t& mask) {
  std::vector<std::string> settings;
  for (const auto& [name, value] : environment) settings.push_back(name + "=" + value);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(settings);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpgid(0, 0);
  if (getppid() != parent) _exit(1);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  execve(argv[0], argv.data(), envp.data());
  constexpr int kCannotExecute = 127;
  _exit(kCannotExecute);
}

/// How much a status says about the cause of a run's end.
int weight(int status) {
  if (status == 0) return 0;
  if (status == kPeerFailed) return 1;
  return status == kHung ? 2 : 3;
}

int status_of(int raw) { return WIFSIGNALED(raw) ? 128 + WTERMSIG(raw) : WEXITSTATUS(raw); }

void print(const std::string& text) { fmt::print(stderr, "stagecraft: {}\n", text); }

std::string ending(int rank, int raw) {
  if (WIFSIGNALED(raw))
    return fmt::format("rank {} was killed by signal {} ({})", rank, WTERMSIG(raw), strsignal(WTERMSIG(raw)));
  return fmt::format("rank {} ended with status {}", rank, WEXITSTATUS(raw));
}

struct Ending {
  int status = 0;
  bool interrupted = false;  ///< a signal was passed on
};

/// Starts all ranks and waits for them.
Ending start_and_wait(int ranks, const std::vector<std::string>& arguments, std::chrono::milliseconds grace,
                      const BlockedSignals& signals) {
  const StoreServer server;
  std::map<std::string, std::string> environment = process_environment();
  environment["MASTER_ADDR"] = "127.0.0.1";
  environment["MASTER_PORT"] = std::to_string(server.port());
  environment["WORLD_SIZE"] = std::to_string(ranks);
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  environment["TORCHELASTIC_RUN_ID"] = fmt::format("stagecraft-{}", getpid());
  environment.erase("TORCHELASTIC_RESTART_COUNT");

  std::vector<pid_t> running(ranks, -1);   // -1 once it has ended
  std::vector<bool> halted(ranks, false);  // by SIGSTOP and the like
  const auto signal_all = [&](int number) {
    for (const pid_t child : running) {
      if (child > 0) kill(child, number);
    }
  };
  for (int rank = 0; rank < ranks; ++rank) {
    environment["RANK"] = environment["LOCAL_RANK"] = std::to_string(rank);
    running[rank] = start(arguments, environment, signals.before());
    if (running[rank] < 0) {
      const std::string why = std::strerror(errno);
      signal_all(SIGKILL);
      for (int other = 0; other < rank; ++other) waitpid(running[other], nullptr, 0);
      throw ChannelError(fmt::format("cannot start rank {}: {}", rank, why));
    }
  }

  int left = ranks;
  int result = 0;
  bool stopped = false;
  bool interrupted = false;
  bool killed = false;
  Clock::time_point failed_at;
  Clock::time_point last_end;
  while (left > 0) {
    const int number = signals.next(std::chrono::milliseconds(100));
    if (number == SIGINT || number == SIGTERM) {
      interrupted = true;
      signal_all(number);
    }
    int first = 0, first_raw = 0;
    bool failed = false;
    for (int rank = 0; rank < ranks; ++rank) {
      int raw = 0;
      if (running[rank] < 0 || waitpid(running[rank], &raw, WNOHANG | WUNTRACED | WCONTINUED) != running[rank])
        continue;
      halted[rank] = WIFSTOPPED(raw);
      if (WIFSTOPPED(raw) || WIFCONTINUED(raw)) continue;
      last_end = Clock::now();
      running[rank] = -1;
      --left;
      const int status = status_of(raw);
      if (status == kStopped) {
        stopped = true;
        continue;
      }
      // Of several found at once, the one that did not merely follow another.
      if (weight(status) <= (failed ? weight(status_of(first_raw)) : 0)) continue;
      failed = true;
      first = rank;
      first_raw = raw;
    }
    const bool cause = !killed && weight(status_of(first_raw)) > weight(result);
    if (failed && (result == 0 || cause)) {
      if (result == 0) failed_at = Clock::now();
      result = status_of(first_raw);
      print(ending(first, first_raw));
    }
    // Ranks that end well watch each other no more.
    const bool all_halted = left > 0 && left < ranks && std::ranges::count(halted, true) == left;
    if (all_halted && result == 0 && Clock::now() - last_end >= grace) {
      result = 128 + SIGKILL;
      failed_at = last_end;
    }
    if (result != 0 && left > 0 && !killed && Clock::now() - failed_at >= grace) {
      std::vector<int> stuck;
      for (int rank = 0; rank < ranks; ++rank) {
        if (running[rank] > 0) stuck.push_back(rank);
      }
      print(fmt::format("{} did not end within {} and {} killed", name_ranks(stuck), seconds_text(grace),
                        stuck.size() == 1 ? "is" : "are"));
      signal_all(SIGKILL);
      killed = true;
    }
  }
  return {result == 0 && stopped ? kStopped : result, interrupted};
}

}  // namespace

int spawn(int ranks, const std::vector<std::string>& arguments, std::chrono::milliseconds grace, int restarts,
          const std::vector<std::string>& again) {
  if (ranks < 1) throw std::invalid_argument(fmt::format("a run has at least 1 rank, got {}", ranks));
  if (arguments.empty() || access(arguments[0].c_str(), X_OK) != 0) {
    throw std::invalid_argument(fmt::format("cannot execute \"{}\"", arguments.empty() ? "" : arguments[0]));
  }
  const BlockedSignals signals;
  Ending ending = start_and_wait(ranks, arguments, grace, signals);
  for (int restart = 1; restart <= restarts; ++restart) {
    if (ending.status == 0 || ending.status == kStopped || ending.interrupted) break;
    print(fmt::format("starting all ranks again, {} of at most {} times", restart, restarts));
    ending = start_and_wait(ranks, again, grace, signals);
  }
  return ending.status;
}

}  // namespace stagecraft
