#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "executor/channel/activity.h"
#include "executor/channel/channel.h"
#include "executor/channel/ucx/ucx_worker.h"

namespace stagecraft::channel {

/// A message's purpose, part of its UCX tag.
enum class UcxKind : std::uint64_t {
  Payload,  ///< a tensor
  Header,   ///< announces a payload, see Announced
  Share,    ///< a member's values for another member to sum
  Sum,      ///< values that a member has summed
};

/// The UCX tag of message `count` (modulo 2^18) that rank `from` sends under a channel's tag.
[[nodiscard]] constexpr ucp_tag_t ucx_tag(int from, int tag, UcxKind kind, std::uint64_t count) {
  static_assert(Channel::kMostTags == 1 << 24);
  constexpr std::uint64_t kCounts = std::uint64_t{1} << 18;
  return static_cast<std::uint64_t>(from) << 44 | static_cast<std::uint64_t>(tag) << 20 |
         static_cast<std::uint64_t>(kind) << 18 | count % kCounts;
}
inline constexpr int kMostUcxRanks = 1 << 20;

/// Work that continues whenever its rank calls the channel, an all-reduce for example.
class UcxOngoing {
 public:
  virtual ~UcxOngoing() = default;
  /// Does what can be done without waiting.
  virtual void advance() = 0;
};

/// State shared by a channel and its operations: the worker, how errors and aborts are reported, who waits for whom.
class UcxLine {
 public:
  using Clock = std::chrono::steady_clock;
  struct Setup {
    int rank = 0;
    int ranks = 1;
    int ranks_here = 1;  ///< ranks on this machine, including this one
    std::chrono::milliseconds deadline{};
    std::shared_ptr<Activity> activity;
    /// Why another rank has aborted the run, if one has; empty otherwise. May take a while.
    std::function<std::string()> aborted_elsewhere;
  };
  UcxLine(Setup setup, std::shared_ptr<UcxWorker> worker);

  [[nodiscard]] int rank() const { return setup_.rank; }
  [[nodiscard]] int ranks() const { return setup_.ranks; }
  [[nodiscard]] std::chrono::milliseconds deadline() const { return setup_.deadline; }
  [[nodiscard]] Activity& activity() { return *setup_.activity; }
  [[nodiscard]] UcxWorker& worker() { return *worker_; }

  /// Starts to send `tensor`, contiguous and on the CPU. Throws PeerError if the peer is lost.
  [[nodiscard]] UcxTransfer send(const at::Tensor& tensor, int to, int tag, UcxKind kind, std::uint64_t count);
  /// Posts a receive of as many bytes as `tensor` has.
  [[nodiscard]] UcxTransfer receive(const at::Tensor& tensor, int from, int tag, UcxKind kind, std::uint64_t count);

  /// Waits until the transfer is over. Throws PeerError if it failed, the deadline passed or the run was aborted;
  /// `late` makes the error for the deadline.
  void wait(UcxTransfer& transfer, int peer, int tag, const char* doing, c10::function_ref<meeting::PeerError()> late);
  /// The same for any condition that messages of `peers` under `tag` bring about.
  void wait_until(c10::function_ref<bool()> ready, std::span<const int> peers, int tag, const char* doing,
                  c10::function_ref<meeting::PeerError()> late);
  /// Throws PeerError if the transfer, which is over, failed.
  void check(const UcxTransfer& transfer, int peer, int tag, const char* doing);
  /// Makes progress, and advances what is under way.
  void progress();

  void throw_if_aborted();
  /// False if it was aborted before. Any thread.
  bool abort(const std::string& reason);

  /// Registers work to be advanced; it must be removed before it is destroyed.
  void add(UcxOngoing& work) { ongoing_.push_back(&work); }
  void remove(UcxOngoing& work) { ongoing_.remove(&work); }

 private:
  [[nodiscard]] bool may_spin() const;
  [[noreturn]] void fail(int peer, int tag, const char* doing, const std::string& why);
  void advance();

  Setup setup_;
  int processors_ = 1;
  std::list<UcxOngoing*> ongoing_;
  Clock::time_point asked_elsewhere_{};
  std::mutex mutex_;  ///< of the reason
  std::string reason_;
  std::atomic<bool> aborted_ = false;
  std::shared_ptr<UcxWorker> worker_;
};

}  // namespace stagecraft::channel
