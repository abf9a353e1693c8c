#pragma once

#include <cstddef>
#include <string>
#include <vector>

// The tests' interface to the fake CUDA runtime and NCCL, see pretended_nccl.cpp.

namespace stagecraft::testing {

/// A call that was made on a communicator after its first exchange.
struct PretendedCall {
  std::string communicator;  ///< its name
  int rank = 0;              ///< in the communicator
  std::string kind;          ///< "send", "receive", "all-reduce", "all-gather"
  std::size_t bytes = 0;     ///< that this rank sends or receives
  friend bool operator==(const PretendedCall&, const PretendedCall&) = default;
};

/// All calls since the last time; those of each thread are in order.
[[nodiscard]] std::vector<PretendedCall> take_pretended_calls();

/// Transfers on the communicator `name` never end from now on; an empty name restores them.
void stall_pretended(const std::string& name);
/// The communicator `name` reports a network error from now on; an empty name restores it.
void break_pretended(const std::string& name);

/// The number of existing communicators, and the rules broken so far, one line each.
[[nodiscard]] int pretended_communicators();
[[nodiscard]] std::vector<std::string> pretended_offences();

}  // namespace stagecraft::testing
