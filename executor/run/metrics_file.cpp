#include "executor/run/metrics_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::run {
namespace {

[[noreturn]] void fail(const std::string& path) {
  throw FormatError(ErrorKind::CannotWrite, path + ": cannot write: " + std::strerror(errno));
}

/// Whether the file ends inside a line.
bool is_cut_off(int descriptor) {
  struct stat status{};
  char last = 0;
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) return false;
  return ::pread(descriptor, &last, 1, status.st_size - 1) == 1 && last != '\n';
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, bool append) : path_(path) {
  // Readable, to see how it ends; a pipe cannot be both.
  const int flags = O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC);
  struct stat status{};
  const bool regular = ::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode);
  descriptor_ = ::open(path.c_str(), flags | (regular ? O_RDWR : O_WRONLY), 0644);
  if (descriptor_ < 0) fail(path);
  if (append && is_cut_off(descriptor_)) write("\n");
}

MetricsFile::~MetricsFile() { ::close(descriptor_); }

void MetricsFile::add(const format::StepMetrics& metrics) { write(format::metrics_line(metrics)); }

void MetricsFile::write(const std::string& text) const {
  const char* at = text.data();
  for (std::size_t left = text.size(); left > 0;) {
    const ssize_t n = ::write(descriptor_, at, left);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_);
    at += n;
    left -= to_index(n);
  }
}

}  // namespace stagecraft::run
