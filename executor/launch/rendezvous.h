#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "executor/channel/activity.h"
#include "executor/launch/exit_status.h"
#include "executor/meeting/launch_info.h"
#include "executor/meeting/peer_error.h"

namespace stagecraft {

/// The meeting point of a run: a key-value store over TCP, kept by rank 0 or by who started the run.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Publishes this rank's value under `key` and returns everyone's, by rank. Throws PeerError naming the ranks
  /// that did not come before the deadline.
  [[nodiscard]] virtual std::vector<std::string> exchange(const std::string& key, const std::string& value) = 0;
  /// Tells all ranks that this one failed and why; the first reason stays, and is printed here if it is another's.
  /// To be called while this rank's channel is still there: the others would take its end for the cause. Never throws.
  virtual void fail(const std::string& reason) noexcept = 0;
  /// What this rank does, which its heartbeat tells the others for their reports; to be given to the rank's channel.
  [[nodiscard]] virtual std::shared_ptr<Activity> activity() const = 0;
  /// This rank is done; its silence does not count as a failure from now on. If it keeps the meeting point, returns
  /// when all others have left too. A rendezvous that ends with neither leave nor fail fails.
  virtual void leave() noexcept = 0;
};

/// Joins the run. A thread watches the store: when any rank fails, falls silent for longer than `deadline`, or the
/// store itself is gone, it prints what happened on standard error and ends the process with kPeerFailed, or kHung if
/// it is this rank that found a silence. The rank that found the cause of the end also prints a line about each rank:
/// what it does, which rank it waits for and for how long, or that it is silent or has left; every rank does if the
/// store is gone, and none if no rank has begun anything. Throws PeerError if the meeting point is not reached before
/// the deadline.
[[nodiscard]] std::unique_ptr<Rendezvous> join(const LaunchInfo& launch, std::chrono::milliseconds deadline);

}  // namespace stagecraft
