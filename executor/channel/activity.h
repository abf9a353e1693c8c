#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace stagecraft {

/// What one rank does and which rank it waits for, for reports. The rank's own thread writes, any thread reads. Writing
/// takes some ten nanoseconds: it neither blocks nor allocates.
class Activity {
 public:
  using Clock = std::chrono::steady_clock;

  /// What is not said is -1. `action` must live as long as the program.
  struct Doing {
    const char* action = "";
    int stage = -1;
    int microbatch = -1;
    std::int64_t step = -1;  ///< from 0 on; told from 1 on
  };

  /// From now on the rank does this, and waits for nobody.
  void begin(const Doing& doing) noexcept;
  /// From now on it waits for rank `peer`, for a message under `tag`. What fails in a wait leaves this as it is: the
  /// report is about it.
  void wait_for(int peer, int tag) noexcept;
  /// The wait is over.
  void go_on() noexcept;

  /// "forward of microbatch 3 of stage 1 in step 7, waits 2.9 s for rank 2 under tag 5". Without a wait the time is the
  /// action's: "update of stage 0 in step 7 for 0.1 s". Empty before the first begin or wait_for.
  [[nodiscard]] std::string text(Clock::time_point now = Clock::now()) const;

 private:
  template <typename Store>
  void write(const Store& store) noexcept;

  // A sequence lock: odd while a write is under way.
  std::atomic<std::uint32_t> sequence_ = 0;
  std::atomic<const char*> action_ = "";
  std::atomic<int> stage_ = -1;
  std::atomic<int> microbatch_ = -1;
  std::atomic<std::int64_t> step_ = -1;
  std::atomic<int> peer_ = -1;
  std::atomic<int> tag_ = -1;
  std::atomic<Clock::rep> since_ = 0;  ///< of the wait, else of the action
};

}  // namespace stagecraft
