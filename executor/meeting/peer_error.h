#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "costmodel/errors.h"

namespace stagecraft::meeting {

/// A peer failed, was silent past the deadline, or was told to stop. Not an error of the input.
class PeerError : public std::runtime_error, public HasErrorKind {
 public:
  enum class Cause {
    Found,     ///< this rank found something wrong
    Deadline,  ///< this rank timed out
    Peer,      ///< another rank failed or disappeared
  };
  explicit PeerError(const std::string& text, Cause cause = Cause::Found)
      : std::runtime_error(text),
        HasErrorKind(cause == Cause::Deadline ? ErrorKind::DeadlineMissed
                     : cause == Cause::Peer   ? ErrorKind::PeerLost
                                              : ErrorKind::CannotConnect),
        cause_(cause) {}
  [[nodiscard]] Cause cause() const { return cause_; }
  /// The same between these texts.
  [[nodiscard]] PeerError within(const std::string& before, const std::string& after = "") const {
    return PeerError(before + what() + after, cause_);
  }

 private:
  Cause cause_;
};

/// "rank 2" or "ranks 2, 3".
[[nodiscard]] std::string name_ranks(const std::vector<int>& ranks);

/// "5.0 s".
[[nodiscard]] std::string seconds_text(std::chrono::duration<double> time);

}  // namespace stagecraft::meeting
