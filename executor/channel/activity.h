#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace stagecraft::channel {

/// What one rank is doing and which rank it waits for, for reports. Written by the rank's thread, read by any thread. A
/// write takes about ten nanoseconds; it neither blocks nor allocates.
class Activity {
 public:
  using Clock = std::chrono::steady_clock;

  /// -1: not set. `action` must live as long as the program.
  struct Doing {
    const char* action = "";
    int stage = -1;
    int microbatch = -1;
    std::int64_t step = -1;  ///< from 0; reported from 1
  };

  /// The rank does this now and waits for no other rank.
  void begin(const Doing& doing) noexcept;
  /// The rank now waits for rank `peer` and a message under `tag`. A wait that fails leaves this set, so that the
  /// report shows it.
  void wait_for(int peer, int tag) noexcept;
  /// The wait is over.
  void go_on() noexcept;

  /// "forward of microbatch 3 of stage 1 in step 7, waiting for rank 2 under tag 5 for 2.9 s". Without a wait, the time
  /// is that of the action: "update of stage 0 in step 7 for 0.1 s". Empty before the first begin or wait_for.
  [[nodiscard]] std::string text(Clock::time_point now = Clock::now()) const;

 private:
  template <typename Store>
  void write(const Store& store) noexcept;

  // A sequence lock: odd during a write.
  std::atomic<std::uint32_t> sequence_ = 0;
  std::atomic<const char*> action_ = "";
  std::atomic<int> stage_ = -1;
  std::atomic<int> microbatch_ = -1;
  std::atomic<std::int64_t> step_ = -1;
  std::atomic<int> peer_ = -1;
  std::atomic<int> tag_ = -1;
  std::atomic<Clock::rep> since_ = 0;  ///< of the wait, or of the action without one
};

}  // namespace stagecraft::channel
