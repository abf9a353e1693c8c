#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "executor/channel/activity.h"
#include "executor/meeting/launch_info.h"
#include "executor/meeting/peer_error.h"

namespace stagecraft::launch {

/// Exit status of a rank that ended because another rank failed.
inline constexpr int kPeerFailed = 3;
/// Exit status of a rank that timed out: a deadline passed, or a rank fell silent.
inline constexpr int kHung = 4;
/// Exit status of a rank that was asked to stop, and did so with a checkpoint. sysexits.h calls 75 EX_TEMPFAIL: start
/// again later.
inline constexpr int kStopped = 75;

/// The exit status for an error's cause: 1, kHung or kPeerFailed.
[[nodiscard]] int exit_status(const meeting::PeerError& error);

/// A rank's connection to the rendezvous server of its run: a key-value store over TCP in the process of rank 0, or in
/// the one that started the run.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Publishes this rank's value under `key` and returns everyone's, by rank. Throws PeerError naming the ranks that
  /// missed the deadline.
  [[nodiscard]] virtual std::vector<std::string> exchange(const std::string& key, const std::string& value) = 0;
  /// Tells all ranks that this one failed and why. The first reason is kept, and printed here if it is another rank's.
  /// Call while this rank's channel is still open, because a closed channel would look like the cause. Never throws.
  virtual void fail(const std::string& reason) noexcept = 0;
  /// What this rank is doing; its heartbeat sends it to the others for their reports. Pass it to the rank's channel.
  [[nodiscard]] virtual std::shared_ptr<channel::Activity> activity() const = 0;
  /// This rank is done; its silence no longer counts as a failure. If it runs the rendezvous server, returns when all
  /// others have left too. Destroying a rendezvous without leave or fail counts as a failure.
  virtual void leave() noexcept = 0;
};

/// Joins the run. A thread watches the server: when any rank fails, ends without leaving, is silent for longer than
/// `deadline`, or the server disappears, it prints what happened on standard error and ends the process with
/// kPeerFailed, or with kHung if this rank detected a silent rank. One rank, the one that found the cause if any did,
/// also prints one line per rank: what it is doing, which rank it waits for and for how long, or that it is silent or
/// has left. If the server disappeared, every rank prints them; if no rank has started anything, none does. Throws
/// PeerError if the rendezvous server cannot be reached before the deadline.
[[nodiscard]] std::unique_ptr<Rendezvous> join(const meeting::LaunchInfo& launch, std::chrono::milliseconds deadline);

}  // namespace stagecraft::launch
