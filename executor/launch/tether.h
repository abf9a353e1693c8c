#pragma once

#include <string>
#include <thread>

namespace stagecraft {

/// A remote shell that ends leaves the program that it started running, and passes no signals on. So a rank that was
/// started through one holds on to its standard input: while this object lives, a line TERM or INT there is that signal
/// to this process, and the input's end means that the process at the other end of the shell is gone: this one then
/// prints so, as `name` ("rank 2"), and ends with kPeerFailed.
class Tether {
 public:
  explicit Tether(std::string name);
  ~Tether();
  Tether(const Tether&) = delete;
  Tether& operator=(const Tether&) = delete;

 private:
  std::jthread waiting_;
};

/// Set to 1 in the environment of a rank whose standard input is such a line.
inline constexpr const char* kTetherVariable = "STAGECRAFT_TETHER";

}  // namespace stagecraft
