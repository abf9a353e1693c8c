#include "executor/launch/rank_log.h"

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
#include "costmodel/index.h"

namespace stagecraft::launch {
namespace {

[[noreturn]] void refuse(const std::string& path, int error) {
  throw FormatError(ErrorKind::CannotWrite, fmt::format("{}: cannot write: {}", path, std::strerror(error)));
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
    if (written <= 0)
      return;  // a closed terminal does not end the log, and a full disk does not end the terminal's output
    data += written;
    length -= to_index(written);
  }
}

constexpr std::array kNumbers{STDOUT_FILENO, STDERR_FILENO};

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
    const std::string line =
        fmt::format("stagecraft: rank {} restarts, {:%Y-%m-%d %H:%M:%S} UTC\n", rank, fmt::gmtime(std::time(nullptr)));
    write_all(log, line.data(), line.size());
  }
  if (rank != 0) {
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    ::close(log);
    return;
  }
  log_ = log;
  std::array<int, 2> written{};  // the ends to which this process writes
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) refuse(path, errno);
    streams_[i] = {ends[0], ::fcntl(kNumbers[i], F_DUPFD_CLOEXEC, 0)};
    written[i] = ends[1];
  }
  std::fflush(nullptr);
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    ::dup2(written[i], kNumbers[i]);
    ::close(written[i]);
  }
  copier_ = ::fork();
  if (copier_ < 0) {
    const int error = errno;
    restore();
    refuse(path, error);
  }
  if (copier_ == 0) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) std::signal(number, SIG_IGN);
    restore();  // closes the ends for writing
    ::close(STDIN_FILENO);
    copy(streams_, log_);
    ::_exit(0);
  }
  // The read ends stay open here too: output written after the copier was killed stays in the pipes, without SIGPIPE.
  watcher_ = std::thread([this] { watch(); });
}

void RankLog::copy(std::array<Stream, 2> streams, int log) {
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
      write_all(log, buffer.data(), to_index(length));
      write_all(streams[i].to, buffer.data(), to_index(length));
    }
  }
}

void RankLog::restore() const {
  for (std::size_t i = 0; i < streams_.size(); ++i) ::dup2(streams_[i].to, kNumbers[i]);
}

void RankLog::watch() {
  int status = 0;
  while (::waitpid(copier_, &status, 0) < 0 && errno == EINTR) {}
  if (closing_) return;
  const std::string line = fmt::format(
      "stagecraft: the process that copied rank 0's log was killed by signal {}; rank 0 now copies it itself\n",
      WIFSIGNALED(status) ? WTERMSIG(status) : 0);
  write_all(log_, line.data(), line.size());
  write_all(streams_[1].to, line.data(), line.size());
  copy(streams_, log_);
}

RankLog::~RankLog() {
  if (!watcher_.joinable()) return;
  closing_ = true;
  std::cout.flush();
  std::fflush(nullptr);
  // The copier ends when no process can write to it any more.
  restore();
  watcher_.join();
  copy(streams_, log_);  // what a killed copier has left
  for (const Stream& stream : streams_) {
    ::close(stream.from);
    ::close(stream.to);
  }
  ::close(log_);
}

}  // namespace stagecraft::launch
