#include "costmodel/format/files/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

[[noreturn]] void fail_reading(const std::string& path) {
  throw FormatError(ErrorKind::CannotRead, path + ": cannot read: " + std::strerror(errno));
}

[[noreturn]] void fail_writing(const std::string& path) {
  throw FormatError(ErrorKind::CannotWrite, path + ": cannot write: " + std::strerror(errno));
}

}  // namespace

std::string read_text(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) fail_reading(path);
  if (S_ISDIR(status.st_mode)) throw FormatError(ErrorKind::CannotRead, path + ": is a directory, expected a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) fail_reading(path);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) fail_reading(path);
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::cout << text << std::flush;
    if (!std::cout) throw FormatError(ErrorKind::CannotWrite, "standard output: cannot write");
    return;
  }
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) throw FormatError(ErrorKind::CannotWrite, path + ": is a directory, expected a file");
    if (!S_ISREG(status.st_mode)) {  // a pipe or device cannot be replaced by renaming
      std::ofstream out(path, std::ios::binary);
      out << text << std::flush;
      if (!out) fail_writing(path);
      return;
    }
  }
  const std::string temporary = path + ".partial." + std::to_string(::getpid());
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) fail_writing(path);
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(descriptor, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int reason = errno;
      ::close(descriptor);
      ::unlink(temporary.c_str());
      errno = reason;
      fail_writing(path);
    }
    done += to_index(n);
  }
  const int synced = ::fsync(descriptor) == 0 ? 0 : errno;
  const int closed = ::close(descriptor) == 0 ? synced : errno;
  if (closed != 0 || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int reason = closed != 0 ? closed : errno;
    ::unlink(temporary.c_str());
    errno = reason;
    fail_writing(path);
  }
}

void check_can_write(const std::string& path) {
  if (path.empty() || path == "-") return;
  struct stat status{};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode))
    throw FormatError(ErrorKind::CannotWrite, path + ": is a directory, expected a file");
  if (exists && !S_ISREG(status.st_mode)) return;  // a pipe or device reports errors when it is written
  const std::string temporary = path + ".partial." + std::to_string(::getpid());
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) fail_writing(path);
  ::close(descriptor);
  ::unlink(temporary.c_str());
}

}  // namespace stagecraft::format
