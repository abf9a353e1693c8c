#pragma once

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

// A terminal for tests: what programs write to it, and what it shows then.

namespace stagecraft::testing {

/// A pseudo-terminal that is `columns` wide.
class PseudoTerminal {
 public:
  explicit PseudoTerminal(unsigned short columns = 80) {
    host_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (host_ < 0 || ::grantpt(host_) != 0 || ::unlockpt(host_) != 0) return;
    path_ = ::ptsname(host_);
    terminal_ = ::open(path_.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal_ < 0) return;
    winsize size{};
    size.ws_col = columns;
    ::ioctl(terminal_, TIOCSWINSZ, &size);
    reader_ = std::thread([this] {  // a writer waits once some KiB are not read
      std::array<char, 4096> part{};
      // Once all other ends are closed, read returns what is left and then fails.
      for (ssize_t count = 0; (count = ::read(host_, part.data(), part.size())) > 0;)
        written_.append(part.data(), static_cast<std::size_t>(count));
    });
  }
  ~PseudoTerminal() {
    (void)written();
    if (host_ >= 0) ::close(host_);
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  /// Whether this machine has pseudo-terminals (/dev/pts).
  [[nodiscard]] bool is_open() const { return terminal_ >= 0; }
  [[nodiscard]] int descriptor() const { return terminal_; }
  [[nodiscard]] const std::string& path() const { return path_; }

  /// All that was written to it, with \r\n for \n; closes it.
  std::string written() {
    if (terminal_ >= 0) ::close(terminal_);
    terminal_ = -1;
    if (reader_.joinable()) reader_.join();
    return written_;
  }

 private:
  int host_ = -1;
  int terminal_ = -1;
  std::string path_;
  std::string written_;
  std::thread reader_;
};

/// Before a command that writes to a PseudoTerminal: the environment of somebody who sits in front of it.
inline constexpr const char* kAtATerminal = "env -u CI -u NO_COLOR -u COLUMNS TERM=xterm ";

/// What a terminal shows after `written`: the lines, without colours and without what was overwritten or erased.
inline std::string shown_after(std::string_view written) {
  std::string out;
  std::string line;
  std::size_t column = 0;
  for (std::size_t i = 0; i < written.size(); ++i) {
    const char c = written[i];
    if (c == '\r') {
      column = 0;
    } else if (c == '\n') {
      out += line + "\n";
      line.clear();
      column = 0;
    } else if (c == '\033' && i + 1 < written.size() && written[i + 1] == '[') {
      for (i += 2; i < written.size() && std::isalpha(static_cast<unsigned char>(written[i])) == 0;) ++i;
      if (i < written.size() && written[i] == 'K') line.resize(std::min(line.size(), column));
    } else {
      line.resize(std::max(line.size(), column + 1), ' ');
      line[column++] = c;
    }
  }
  return out + line;
}

}  // namespace stagecraft::testing
