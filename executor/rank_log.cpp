#include "executor/rank_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iostream>

#include "costmodel/errors.h"

namespace stagecraft {
namespace {

[[noreturn]] void refuse(const std::string& path, int error) {
  throw FormatError(fmt::format("{}: cannot write: {}", path, std::strerror(error)));
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) refuse(folder, error.value());
}

void write_all(int to, const char* data, std::size_t length) {
  while (length > 0) {
    const ssize_t written = ::write(to, data, length);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // a closed terminal does not end the log, nor a full disk the terminal
    data += written;
    length -= static_cast<std::size_t>(written);
  }
}

/// One of rank 0's two streams: where it comes from, and where it goes beside the log.
struct Stream {
  int from = -1;
  int to = -1;
};

/// Copies until both have ended. In a process of its own: calls nothing that a fork with threads would forbid.
[[noreturn]] void copy(std::array<Stream, 2> streams, int log) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) std::signal(number, SIG_IGN);
  ::close(STDIN_FILENO);
  std::array<char, 1 << 16> buffer{};
  while (streams[0].from >= 0 || streams[1].from >= 0) {
    std::array<pollfd, 2> wanted{{{streams[0].from, POLLIN, 0}, {streams[1].from, POLLIN, 0}}};
    if (::poll(wanted.data(), wanted.size(), -1) < 0) continue;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (wanted[i].revents == 0) continue;
      const ssize_t length = ::read(streams[i].from, buffer.data(), buffer.size());
      if (length < 0 && errno == EINTR) continue;
      if (length <= 0) {
        streams[i].from = -1;
        continue;
      }
      write_all(log, buffer.data(), static_cast<std::size_t>(length));
      write_all(streams[i].to, buffer.data(), static_cast<std::size_t>(length));
    }
  }
  ::_exit(0);
}

}  // namespace

std::string rank_log_path(const std::string& folder, int rank, int ranks) {
  const std::size_t digits = std::to_string(ranks - 1).size();
  return (std::filesystem::path(folder) / fmt::format("rank-{:0{}}.log", rank, digits)).string();
}

void check_log_folder(const std::string& folder) {
  make_folder(folder);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) refuse(folder, errno);
}

RankLog::RankLog(const std::string& folder, int rank, int ranks) {
  make_folder(folder);
  const std::string path = rank_log_path(folder, rank, ranks);
  const int log = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (log < 0) refuse(path, errno);
  struct stat before{};
  if (::fstat(log, &before) == 0 && before.st_size > 0) {
    const std::string line = fmt::format("stagecraft: rank {} starts again, {:%Y-%m-%d %H:%M:%S} UTC\n", rank,
                                         fmt::gmtime(std::time(nullptr)));
    write_all(log, line.data(), line.size());
  }
  if (rank != 0) {
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    ::close(log);
    return;
  }
  std::array<int, 2> output{};
  std::array<int, 2> error{};
  if (::pipe2(output.data(), O_CLOEXEC) != 0 || ::pipe2(error.data(), O_CLOEXEC) != 0) refuse(path, errno);
  output_ = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
  error_ = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  std::fflush(nullptr);
  copier_ = ::fork();
  if (copier_ < 0) refuse(path, errno);
  if (copier_ == 0) {
    ::close(output[1]);
    ::close(error[1]);
    copy({{{output[0], output_}, {error[0], error_}}}, log);
  }
  ::dup2(output[1], STDOUT_FILENO);
  ::dup2(error[1], STDERR_FILENO);
  for (const int done : {output[0], output[1], error[0], error[1], log}) ::close(done);
}

RankLog::~RankLog() {
  if (copier_ < 0) return;
  std::cout.flush();
  std::fflush(nullptr);
  // The copier ends when nobody can write to it any more.
  ::dup2(output_, STDOUT_FILENO);
  ::dup2(error_, STDERR_FILENO);
  ::close(output_);
  ::close(error_);
  while (::waitpid(copier_, nullptr, 0) < 0 && errno == EINTR) {}
}

}  // namespace stagecraft
