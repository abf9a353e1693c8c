#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// How a test controls the fake CUDA runtime and NCCL, see fake_nccl.cpp.

namespace stagecraft::testing {

/// A call on a communicator.
struct FakeCall {
  std::string communicator;  ///< its name
  int rank = 0;              ///< in it
  std::string kind;          ///< "send", "receive", "all-reduce", "all-gather", "reduce-scatter"
  std::size_t bytes = 0;     ///< of what this rank sends or receives
  friend bool operator==(const FakeCall&, const FakeCall&) = default;
};

/// From now on, calls of this thread are recorded.
void record_fake_calls();
/// All recorded calls since the last time, those of each thread in its order.
[[nodiscard]] std::vector<FakeCall> take_fake_calls();

/// From now on, it breaks a rule if this thread calls an operation with bytes that its communicator has not seen: NCCL
/// may have to connect for it.
void require_connected_fake();

/// From now on, transfers on the communicator `name` never end; an empty name ends that.
void stall_fake(const std::string& name);
/// From now on, the communicator `name` reports a network error; an empty name ends that.
void break_fake(const std::string& name);

/// Communicators that exist, and the rules broken so far, one line each.
[[nodiscard]] int fake_communicators();
[[nodiscard]] std::vector<std::string> fake_violations();

/// While it exists, the calling thread's default stream is a separate stream, as on a GPU: work enqueued there runs
/// later, on another thread. Without one, the default stream is the calling thread itself.
class FakeCompute {
 public:
  FakeCompute();
  /// Returns when all work is done.
  ~FakeCompute();
  FakeCompute(const FakeCompute&) = delete;
  FakeCompute& operator=(const FakeCompute&) = delete;
  /// Returns when all work is done.
  void synchronize();
  /// Enqueues `kernel`.
  void launch(std::function<void()> kernel);
  /// Memory as a caching allocator gives it out: once freed, work that is enqueued on this stream from then on may
  /// overwrite it. A transfer that still uses it then breaks a rule. Call `free_memory` on this thread.
  [[nodiscard]] void* allocate(std::size_t bytes);
  void free_memory(void* memory);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stagecraft::testing
