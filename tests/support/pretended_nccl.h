#pragma once

#include <cstddef>
#include <string>
#include <vector>

// What a test asks of the library that pretends to be the CUDA runtime and NCCL, see pretended_nccl.cpp.

namespace stagecraft::testing {

/// A call that was made on a communicator after its first exchange.
struct PretendedCall {
  std::string communicator;  ///< its name
  int rank = 0;              ///< in it
  std::string kind;          ///< "send", "receive", "all-reduce", "all-gather"
  std::size_t bytes = 0;     ///< of what this rank gives or takes
  friend bool operator==(const PretendedCall&, const PretendedCall&) = default;
};

/// All calls since the last time, those of each thread in its order.
[[nodiscard]] std::vector<PretendedCall> take_pretended_calls();

/// From now on transfers on the communicator `name` never end; an empty name ends that.
void stall_pretended(const std::string& name);
/// From now on the communicator `name` reports an error of the network; an empty name ends that.
void break_pretended(const std::string& name);

/// Communicators that exist, and what was broken of the rules so far, a line each.
[[nodiscard]] int pretended_communicators();
[[nodiscard]] std::vector<std::string> pretended_offences();

}  // namespace stagecraft::testing
