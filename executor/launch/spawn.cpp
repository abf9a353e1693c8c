#include "executor/launch/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <sstream>

#include "costmodel/index.h"
#include "executor/launch/launch.h"
#include "executor/launch/rendezvous.h"
#include "executor/meeting/meeting_store.h"
#include "executor/meeting/secret.h"

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

namespace {

using Clock = std::chrono::steady_clock;

/// Blocks SIGINT, SIGTERM and SIGCHLD for this thread and those it starts; they are received by waiting for them. Also
/// SIGPIPE, which writing to a rank that has ended raises.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&set_);
    for (const int number : {SIGINT, SIGTERM, SIGCHLD, SIGPIPE}) sigaddset(&set_, number);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  [[nodiscard]] const sigset_t& before() const { return before_; }
  /// The next signal, or 0 after the timeout.
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

/// How to start one rank.
struct Start {
  std::string host;  ///< empty: this machine
  std::vector<std::string> arguments;
  std::map<std::string, std::string> environment;
};

/// A started rank.
struct Child {
  pid_t process = -1;   ///< -1 once it has ended
  std::string host;     ///< empty: this machine
  int tether = -1;      ///< the other end of the standard input of a rank on another machine
  bool halted = false;  ///< by SIGSTOP and the like
};

/// Starts one rank. Between fork and exec, only calls that are safe in a multithreaded program.
Child start(Start what, const sigset_t& mask) {
  std::vector<std::string> settings;
  for (const auto& [name, value] : what.environment) settings.push_back(name + "=" + value);
  const std::vector<char*> argv = pointers(what.arguments);
  const std::vector<char*> envp = pointers(settings);
  Child child;
  child.host = what.host;
  std::array<int, 2> input{-1, -1};
  if (!what.host.empty()) {
    if (pipe2(input.data(), O_CLOEXEC) != 0) return child;
    child.tether = input[1];
  }
  const pid_t parent = getpid();
  child.process = fork();
  if (child.process != 0) {
    if (input[0] >= 0) close(input[0]);
    return child;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpgid(0, 0);
  if (getppid() != parent) _exit(1);
  if (input[0] >= 0) dup2(input[0], STDIN_FILENO);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  execve(argv[0], argv.data(), envp.data());
  constexpr int kCannotExecute = 127;
  _exit(kCannotExecute);
}

/// How much a status reveals about why a run ended.
int weight(int status) {
  if (status == 0) return 0;
  if (status == kPeerFailed) return 1;
  return status == kHung ? 2 : 3;
}

/// Writes a line to the standard input of a rank on another machine; no effect if it has ended.
void tell(const Child& child, const std::string& line) {
  const std::string text = line + "\n";
  [[maybe_unused]] const auto written = write(child.tether, text.data(), text.size());
}

/// Passes SIGINT, SIGTERM or SIGKILL to a rank. Through the tether, a signal that ends a remote shell also ends its
/// rank.
void pass_on(const Child& child, int number) {
  if (child.process < 0) return;
  if (child.host.empty() || number == SIGKILL) {
    kill(child.process, number);
  } else {
    tell(child, number == SIGINT ? "INT" : "TERM");
  }
}

int status_of(int raw) { return WIFSIGNALED(raw) ? 128 + WTERMSIG(raw) : WEXITSTATUS(raw); }

void print(const std::string& text) { fmt::print(stderr, "stagecraft: {}\n", text); }

/// Whether a rank was killed; a remote shell reports signals like a shell.
bool was_killed(const std::string& host, int raw) {
  const int status = status_of(raw);
  return WIFSIGNALED(raw) || (!host.empty() && status > 128 && status <= 128 + SIGRTMAX);
}

/// Whether a rank's remote shell failed, not the rank.
bool lost_host(const std::string& host, int raw) {
  constexpr int kRemoteShellFailed = 255;
  return !host.empty() && status_of(raw) == kRemoteShellFailed;
}

/// How a rank ended, in words.
std::string ending(int rank, const std::string& host, int raw) {
  const std::string name = fmt::format("rank {}{}", rank, host.empty() ? "" : " on " + host);
  const int status = status_of(raw);
  if (was_killed(host, raw))
    return fmt::format("{} was killed by signal {} ({})", name, status - 128, strsignal(status - 128));
  return fmt::format("{} ended with status {}{}", name, status,
                     lost_host(host, raw) ? ": its remote shell could not reach the host or lost the connection" : "");
}

struct Ending {
  int status = 0;
  bool interrupted = false;  ///< a signal was passed on
  FailedRank failed = {};
};

/// Where rank 0 runs the rendezvous server of ranks on several hosts.
struct MeetingAddress {
  std::string host;
  std::string port;
};

MeetingAddress meeting_address(const std::vector<RankPlace>& places,
                               const std::map<std::string, std::string>& environment, int number_of_start) {
  const auto set = environment.find("MASTER_PORT");
  // A different port each time: ranks of the previous attempt may still be ending.
  const std::string port = set != environment.end() && !set->second.empty()
                               ? set->second
                               : std::to_string(port_of_job(getpid() + number_of_start));
  return {meeting_host(places, environment), port};
}

/// The start of each rank: on this machine, meeting at `server`, or on the hosts.
std::vector<Start> starts(const RankCommand& command, const std::string& remote_shell,
                          const std::map<std::string, std::string>& environment, const std::string& id,
                          int number_of_start, const std::optional<meeting::StoreServer>& server) {
  const auto& [ranks, arguments, hosts] = command;
  std::map<std::string, std::string> launch;
  launch["WORLD_SIZE"] = std::to_string(ranks);
  launch["TORCHELASTIC_RUN_ID"] = id;
  launch["TORCHELASTIC_RESTART_COUNT"] = std::to_string(number_of_start);
  launch["TORCHELASTIC_USE_AGENT_STORE"] = server ? "True" : "False";
  std::vector<RankPlace> places(to_index(ranks));
  for (int rank = 0; rank < ranks; ++rank) places[to_index(rank)] = {"localhost", rank};
  MeetingAddress meeting{"127.0.0.1", server ? std::to_string(server->port()) : ""};
  if (!server) {
    places = place_ranks(hosts, ranks);
    meeting = meeting_address(places, environment, number_of_start);
  }
  launch["MASTER_ADDR"] = meeting.host;
  launch["MASTER_PORT"] = meeting.port;
  std::istringstream words(remote_shell);
  std::vector<std::string> shell{"/usr/bin/env"};  // which searches PATH for the program
  for (std::string word; words >> word;) shell.push_back(word);

  std::vector<Start> out;
  for (int rank = 0; rank < ranks; ++rank) {
    launch["RANK"] = std::to_string(rank);
    launch["LOCAL_RANK"] = std::to_string(places[to_index(rank)].local_rank);
    Start next;
    if (is_local(places[to_index(rank)].host)) {
      next.arguments = arguments;
      next.environment = launch;
      next.environment.insert(environment.begin(), environment.end());
    } else {
      std::map<std::string, std::string> there = launch;
      there[kTetherVariable] = "1";
      there.merge(handed_over(environment));
      next.host = places[to_index(rank)].host;
      next.environment = environment;
      next.arguments = shell;
      next.arguments.push_back(next.host);
      next.arguments.push_back(remote_command(arguments, there, std::filesystem::current_path().string()));
    }
    out.push_back(std::move(next));
  }
  return out;
}

/// Waits for processes that ended ranks left to this one, such as the copier of rank 0's log.
void wait_for_leftovers() {
  constexpr auto kLongest = std::chrono::seconds(1);
  const auto until = Clock::now() + kLongest;
  while (waitpid(-1, nullptr, WNOHANG) >= 0 && Clock::now() < until) {
    const timespec pause{0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
}

void signal_all(const std::vector<Child>& running, int number) {
  for (const Child& child : running) pass_on(child, number);
}

/// Starts the ranks; those on other hosts receive `secret`. Throws PeerError if one cannot be started, having killed
/// the others.
std::vector<Child> start_all(const std::vector<Start>& all, const std::string& secret, const BlockedSignals& signals) {
  std::vector<Child> running;
  for (const Start& next : all) {
    const Child& child = running.emplace_back(start(next, signals.before()));
    if (child.process < 0) {
      const std::string why = std::strerror(errno);
      signal_all(running, SIGKILL);
      for (std::size_t other = 0; other + 1 < running.size(); ++other) waitpid(running[other].process, nullptr, 0);
      throw meeting::PeerError(fmt::format("cannot start rank {}: {}", running.size() - 1, why));
    }
    if (!child.host.empty()) tell(child, secret);
  }
  return running;
}

/// Waits until all ranks have ended, passes signals on, and kills ranks that stay `grace` after another failed.
Ending wait_for_all(std::vector<Child>& running, std::chrono::milliseconds grace, const BlockedSignals& signals) {
  const int ranks = to_int(running.size());
  int left = ranks;
  int result = 0;
  bool stopped = false;
  bool interrupted = false;
  bool killed = false;
  FailedRank failed_rank;
  Clock::time_point failed_at;
  Clock::time_point last_end;
  while (left > 0) {
    const int number = signals.next(std::chrono::milliseconds(100));
    if (number == SIGINT || number == SIGTERM) {
      interrupted = true;
      signal_all(running, number);
    }
    int first = 0;
    int first_raw = 0;
    bool failed = false;
    for (int rank = 0; rank < ranks; ++rank) {
      int raw = 0;
      Child& child = running[to_index(rank)];
      if (child.process < 0 || waitpid(child.process, &raw, WNOHANG | WUNTRACED | WCONTINUED) != child.process)
        continue;
      child.halted = WIFSTOPPED(raw);
      if (WIFSTOPPED(raw) || WIFCONTINUED(raw)) continue;
      last_end = Clock::now();
      child.process = -1;
      if (child.tether >= 0) close(child.tether);
      --left;
      const int status = status_of(raw);
      if (status == kStopped) {
        stopped = true;
        continue;
      }
      // Of several that ended at the same time, the one that is not a consequence of another.
      if (weight(status) <= (failed ? weight(status_of(first_raw)) : 0)) continue;
      failed = true;
      first = rank;
      first_raw = raw;
    }
    const bool cause = !killed && weight(status_of(first_raw)) > weight(result);
    if (failed && (result == 0 || cause)) {
      if (result == 0) failed_at = Clock::now();
      result = status_of(first_raw);
      const std::string& host = running[to_index(first)].host;
      failed_rank = {first, was_killed(host, first_raw) || lost_host(host, first_raw)};
      print(ending(first, host, first_raw));
    }
    // Ranks that ended well no longer watch each other.
    const bool all_halted = left > 0 && left < ranks && std::ranges::count(running, true, &Child::halted) == left;
    if (all_halted && result == 0 && Clock::now() - last_end >= grace) {
      result = 128 + SIGKILL;
      failed_at = last_end;
    }
    if (result != 0 && left > 0 && !killed && Clock::now() - failed_at >= grace) {
      std::vector<int> stuck;
      for (int rank = 0; rank < ranks; ++rank) {
        if (running[to_index(rank)].process > 0) stuck.push_back(rank);
      }
      print(fmt::format("{} did not end within {} and {} killed", meeting::name_ranks(stuck),
                        meeting::seconds_text(grace), stuck.size() == 1 ? "is" : "are"));
      signal_all(running, SIGKILL);
      killed = true;
    }
  }
  return {result == 0 && stopped ? kStopped : result, interrupted, failed_rank};
}

/// Starts all ranks and waits for them.
Ending start_and_wait(const RankCommand& command, std::chrono::milliseconds grace, const std::string& remote_shell,
                      int number_of_start, const BlockedSignals& signals) {
  std::map<std::string, std::string> environment = process_environment();
  if (command.hosts.empty()) environment.erase("STAGECRAFT_LISTEN");
  const std::string id = fmt::format("stagecraft-{}", getpid());
  std::optional<meeting::StoreServer> server;
  // A new secret for this start, unless one was set for ranks on hosts.
  std::string& secret = environment[meeting::kSecretVariable];
  if (command.hosts.empty() || secret.empty()) secret = meeting::random_secret();
  // The run's id, as read by launch_from_environment.
  if (command.hosts.empty())
    server.emplace(meeting::MeetingPlace{.secret = secret, .run_id = fmt::format("{}.{}", id, number_of_start)});
  const std::vector<Start> all = starts(command, remote_shell, environment, id, number_of_start, server);
  prctl(PR_SET_CHILD_SUBREAPER, 1);

  std::vector<Child> running = start_all(all, secret, signals);
  const Ending ending = wait_for_all(running, grace, signals);
  wait_for_leftovers();
  return ending;
}

}  // namespace

int spawn(RankCommand command, std::chrono::milliseconds grace, const SpawnOptions& options) {
  const std::vector<std::string>& arguments = command.arguments;
  if (command.ranks < 1)
    throw std::invalid_argument(fmt::format("a run must have at least 1 rank, got {}", command.ranks));
  if (arguments.empty() || access(arguments[0].c_str(), X_OK) != 0) {
    throw std::invalid_argument(fmt::format("cannot execute \"{}\"", arguments.empty() ? "" : arguments[0]));
  }
  const BlockedSignals signals;
  Ending ending = start_and_wait(command, grace, options.remote_shell, 0, signals);
  for (int restart = 1; restart <= options.restarts; ++restart) {
    if (ending.status == 0 || ending.status == kStopped || ending.interrupted) break;
    print(fmt::format("restarting all ranks, attempt {} of {}", restart, options.restarts));
    command = options.again(ending.failed);
    ending = start_and_wait(command, grace, options.remote_shell, restart, signals);
  }
  return ending.status;
}

}  // namespace stagecraft::launch
