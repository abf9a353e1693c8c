#include "costmodel/project/process.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <utility>

#include "costmodel/errors.h"

namespace stagecraft::project {
namespace {

/// A file descriptor that is closed at the end.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  void close() {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }
  [[nodiscard]] int get() const { return number_; }

 private:
  int number_ = -1;
};

[[noreturn]] void fail(const char* call) { throw DeviceError(std::string(call) + ": " + std::strerror(errno)); }

sigset_t deferred_signals() {
  sigset_t out;
  sigemptyset(&out);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&out, signal);
  return out;
}

void write_all(int descriptor, const char* data, std::size_t n) {
  while (n > 0) {
    const ssize_t written = ::write(descriptor, data, n);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // a closed pipe of ours does not end the program
    data += written;
    n -= static_cast<std::size_t>(written);
  }
}

/// Both ends of where a program writes.
struct ProcessLine {
  Descriptor read;
  Descriptor write;
};

ProcessLine make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail("pipe2");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// A terminal as wide as ours; a pipe if there is none left.
ProcessLine make_terminal() {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0;
  int read = -1;
  int write = -1;
  if (::openpty(&read, &write, nullptr, nullptr, known ? &size : nullptr) != 0) return make_pipe();
  ::fcntl(read, F_SETFD, FD_CLOEXEC);
  ::fcntl(write, F_SETFD, FD_CLOEXEC);
  return {Descriptor(read), Descriptor(write)};
}

/// Writes a log of what a terminal shows in the end: of a line that is rewritten, its last state.
class Log {
 public:
  Log(const std::string& path, const std::string& headline) : path_(path) {
    file_ = Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (file_.get() < 0) throw FormatError(ErrorKind::CannotWrite, path + ": cannot write: " + std::strerror(errno));
    write_all(file_.get(), headline.data(), headline.size());
  }
  ~Log() { write_all(file_.get(), line_.data(), line_.size()); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void add(const char* data, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      const char c = data[i];
      if (returned_ && c != '\n') line_.clear();
      returned_ = c == '\r';
      if (returned_) continue;
      line_ += c;
      if (c != '\n') continue;
      constexpr const char* kErase = "\x1B[K";
      while (true) {
        const std::size_t at = line_.find(kErase);
        if (at == std::string::npos) break;
        line_.erase(at, 3);
      }
      write_all(file_.get(), line_.data(), line_.size());
      line_.clear();
    }
  }

 private:
  std::string path_;
  Descriptor file_;
  std::string line_;
  bool returned_ = false;
};

/// In the new process, until it becomes the program. Only calls that are safe after fork.
[[noreturn]] void become(const std::string& program, char* const* arguments, int output, int error, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(error, STDERR_FILENO);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  const sigset_t signals = deferred_signals();
  ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  ::execv(program.c_str(), arguments);
  ::_exit(127);
}

/// Reads what is there; false at the end.
template <class Take>
bool pump(const Descriptor& from, Take take) {
  std::array<char, 1 << 14> buffer{};
  const ssize_t n = ::read(from.get(), buffer.data(), buffer.size());
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  if (n <= 0) return false;  // a terminal that nobody holds any more gives EIO
  take(buffer.data(), static_cast<std::size_t>(n));
  return true;
}

bool is_ready(const pollfd& one) { return (one.revents & (POLLIN | POLLHUP | POLLERR)) != 0; }

}  // namespace

DeferredSignals::DeferredSignals() {
  const sigset_t signals = deferred_signals();
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
}

DeferredSignals::~DeferredSignals() {
  const sigset_t signals = deferred_signals();
  ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);
}

std::optional<int> DeferredSignals::taken() const {
  const sigset_t signals = deferred_signals();
  const timespec now{};
  const int signal = ::sigtimedwait(&signals, nullptr, &now);
  if (signal <= 0) return std::nullopt;
  return signal;
}

Ended run_process(const std::string& program, const std::vector<std::string>& arguments, const std::string& log_path,
                  const std::string& headline, bool capture) {
  Log log(log_path, headline);
  ProcessLine output = make_pipe();
  ProcessLine error = ::isatty(STDERR_FILENO) == 1 ? make_terminal() : make_pipe();
  std::vector<char*> words{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  const sigset_t signals = deferred_signals();
  const Descriptor arrivals(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (arrivals.get() < 0) fail("signalfd");

  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  if (child == 0) become(program, words.data(), output.write.get(), error.write.get(), parent);
  ::setpgid(child, child);  // whoever comes first
  output.write.close();
  error.write.close();
  const Descriptor end(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));

  Ended out;
  const auto take_output = [&](const char* data, std::size_t n) {
    log.add(data, n);
    write_all(capture ? STDOUT_FILENO : STDERR_FILENO, data, n);
    if (capture) out.output.append(data, n);
  };
  const auto take_error = [&](const char* data, std::size_t n) {
    log.add(data, n);
    write_all(STDERR_FILENO, data, n);
  };
  bool running = true;
  while (running) {
    std::array<pollfd, 4> wait{{{output.read.get(), POLLIN, 0},
                                {error.read.get(), POLLIN, 0},
                                {end.get(), POLLIN, 0},
                                {arrivals.get(), POLLIN, 0}}};
    if (::poll(wait.data(), wait.size(), -1) < 0 && errno != EINTR) fail("poll");
    if (is_ready(wait[0]) && !pump(output.read, take_output)) output.read.close();
    if (is_ready(wait[1]) && !pump(error.read, take_error)) error.read.close();
    if (is_ready(wait[3])) {
      signalfd_siginfo arrived{};
      if (::read(arrivals.get(), &arrived, sizeof arrived) == static_cast<ssize_t>(sizeof arrived)) {
        out.signal = static_cast<int>(arrived.ssi_signo);
        ::kill(-child, *out.signal);  // to all its processes, as from a terminal
      }
    }
    running = !is_ready(wait[2]);
  }
  // What is still on the way; others may hold the ends open.
  for (const auto& [from, is_output] : {std::pair{&output.read, true}, std::pair{&error.read, false}}) {
    if (from->get() < 0) continue;
    pollfd more{from->get(), POLLIN, 0};
    while (::poll(&more, 1, 0) > 0 && (more.revents & POLLIN) != 0) {
      if (!(is_output ? pump(*from, take_output) : pump(*from, take_error))) break;
    }
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  out.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (out.status == 127) throw DeviceError(ErrorKind::MissingProgram, "cannot start " + program);
  return out;
}

int run_program(std::vector<std::string> words, const std::string& otherwise) {
  std::vector<char*> raw;
  for (std::string& word : words) raw.push_back(word.data());
  raw.push_back(nullptr);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, raw.front(), nullptr, nullptr, raw.data(), environ);
  if (error != 0) throw DeviceError(ErrorKind::MissingProgram, otherwise + " (" + std::strerror(error) + ")");
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace stagecraft::project
