#include "profiler/rank_processes.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <span>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "profiler/subject/subject.h"
#include "profiler/subject/watch.h"

extern char** environ;

namespace stagecraft::profiler {
namespace {

constexpr double kIterate = 0;
constexpr double kStop = 1;
constexpr double kMark = -1;  ///< ready, warm, or the end of the samples
/// A rank hands over its samples this often: each time wakes the process that reads them.
constexpr double kSecondsBetweenWrites = 0.02;
constexpr int kTicksOfPoll = 10;  ///< milliseconds

/// False at the end of the stream.
bool read_number(int file, double& number) {
  std::size_t have = 0;
  while (have < sizeof number) {
    const ssize_t got = ::read(file, reinterpret_cast<char*>(&number) + have, sizeof number - have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    have += static_cast<std::size_t>(got);
  }
  return true;
}

/// False if the other end is closed.
bool write_numbers(int file, std::span<const double> numbers) {
  const char* bytes = reinterpret_cast<const char*>(numbers.data());
  std::size_t left = numbers.size_bytes();
  while (left > 0) {
    // A socket, so that a closed end is an error instead of a signal; another file, as in tests, is written to.
    ssize_t done = ::send(file, bytes, left, MSG_NOSIGNAL);
    if (done < 0 && errno == ENOTSOCK) done = ::write(file, bytes, left);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes += done;
    left -= static_cast<std::size_t>(done);
  }
  return true;
}

bool has_input(int file) {
  pollfd waiting{file, POLLIN, 0};
  return ::poll(&waiting, 1, 0) > 0;
}

/// A started process and a socket to its standard input and output.
class Process {
 public:
  explicit Process(const std::vector<std::string>& command) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) fail("socketpair", errno);
    posix_spawn_file_actions_t actions{};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::vector<std::string> words = command;
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    const int status = ::posix_spawn(&process_, words.front().c_str(), &actions, nullptr, pointers.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    socket_ = ends[0];
    if (status != 0) {
      ::close(socket_);
      fail(command.front(), status);
    }
  }
  ~Process() {
    ::close(socket_);
    ::kill(process_, SIGKILL);
    while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) continue;
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  [[nodiscard]] int socket() const { return socket_; }
  void write(double number) const {
    if (!write_numbers(socket_, {&number, 1})) throw_ended();
  }
  [[nodiscard]] double read() const {
    double out = 0;
    if (!read_number(socket_, out)) throw_ended();
    return out;
  }
  /// Since it started.
  [[nodiscard]] Seconds processor_time() const {
    clockid_t clock{};
    timespec time{};
    if (::clock_getcpuclockid(process_, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return {};
    return Seconds(static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec));
  }

 private:
  [[noreturn]] static void fail(const std::string& what, int error) {
    throw DeviceError(fmt::format("cannot start a process that measures the slowdown of several ranks: {}: {}", what,
                                  std::strerror(error)));
  }
  [[noreturn]] static void throw_ended() {
    throw DeviceError(
        "a process that measures the slowdown of several ranks exited early, see above; --concurrent 1 leaves "
        "that measurement out");
  }

  pid_t process_ = -1;
  int socket_ = -1;
};

class ProcessRanks : public ConcurrentRanks {
 public:
  ProcessRanks(const std::vector<std::string>& command, const ProfileOptions& options) : options_(options) {
    for (int i = 0; i < options.concurrent; ++i) ranks_.push_back(std::make_unique<Process>(command));
    for (const auto& rank : ranks_) (void)rank->read();
  }

  Seconds time(int count, double seconds) override {
    const TimeLimit limit(seconds);
    const std::span ranks = std::span(ranks_).first(to_index(count));
    for (const auto& rank : ranks) rank->write(std::max(limit.left() / 2, 1e-9));
    for (const auto& rank : ranks) (void)rank->read();
    for (const auto& rank : ranks) rank->write(kIterate);
    return time_together(samples_of(ranks, limit), share_processors(count, options_));
  }

  Seconds other_processes_time() const override {
    Seconds out;
    for (const auto& rank : ranks_) out += rank->processor_time();
    return out;
  }

 private:
  /// The seconds of each rank's iterations. The first rank's decide how long.
  [[nodiscard]] std::vector<std::vector<double>> samples_of(std::span<const std::unique_ptr<Process>> ranks,
                                                            const TimeLimit& limit) const {
    const double start = steady_seconds();
    std::vector<std::vector<double>> out(ranks.size());
    std::vector<pollfd> files;
    for (const auto& rank : ranks) files.push_back({rank->socket(), POLLIN, 0});
    bool stopped = false;
    for (std::size_t ended = 0; ended < ranks.size();) {
      (void)::poll(files.data(), files.size(), kTicksOfPoll);
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (files[i].fd < 0 || files[i].revents == 0) continue;
        const double sample = ranks[i]->read();
        if (sample != kMark) {
          out[i].push_back(sample);
          continue;
        }
        files[i].fd = -1;
        ++ended;
      }
      const bool enough =
          out.front().size() >= kEnoughSamples && steady_seconds() - start > options_.rule.most_seconds / 24;
      if (stopped || !(enough || limit.left() <= 0)) continue;
      for (const auto& rank : ranks) rank->write(kStop);
      stopped = true;
    }
    return out;
  }

  const ProfileOptions& options_;
  std::vector<std::unique_ptr<Process>> ranks_;
};

}  // namespace

std::unique_ptr<ConcurrentRanks> ranks_as_processes(const std::vector<std::string>& command,
                                                    const ProfileOptions& options) {
  return std::make_unique<ProcessRanks>(command, options);
}

void serve_iterations(const model::Model& model, const std::vector<at::Tensor>& batch, const ProfileOptions& options,
                      int in, int out) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  at::set_num_threads(options.threads);
  Subject subject(model, options.optimizer, options.seed, options.placement, false);
  StepTimer timer(options.placement.device);
  int warmup = options.warmup;
  int step = 0;
  if (!write_numbers(out, std::array{kMark})) return;
  for (double number = 0; read_number(in, number);) {
    const TimeLimit limit(number);
    for (int k = 0; k < warmup && (k == 0 || limit.left() > 0); ++k) subject.iterate(batch, step++, timer);
    warmup = std::min(warmup, 1);
    (void)timer.take();
    if (!write_numbers(out, std::array{kMark}) || !read_number(in, number)) return;
    std::vector<double> unsent;
    double written = steady_seconds();
    do {
      subject.iterate(batch, step++, timer);
      for (const double seconds : timer.take()) unsent.push_back(seconds);
      if (steady_seconds() - written < kSecondsBetweenWrites) continue;
      if (!write_numbers(out, unsent)) return;
      unsent.clear();
      written = steady_seconds();
    } while (!has_input(in));
    unsent.push_back(kMark);
    if (!read_number(in, number) || !write_numbers(out, unsent)) return;
  }
}

}  // namespace stagecraft::profiler
