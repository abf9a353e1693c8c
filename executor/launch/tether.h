#pragma once

#include <string>
#include <thread>

namespace stagecraft::launch {

/// A remote shell that ends leaves its program running, and it does not pass on signals. So a rank that was started
/// through one watches its standard input: while this object exists, a line TERM or INT sends that signal to this
/// process. The end of the input means that the process at the other end of the shell has exited: this process then
/// prints that, as `name` ("rank 2"), and ends with kPeerFailed.
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

}  // namespace stagecraft::launch
