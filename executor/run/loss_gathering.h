#pragma once

#include <memory>
#include <vector>

#include "executor/channel/channel.h"
#include "executor/run/bound_model.h"
#include "executor/stage/step_losses.h"

namespace stagecraft {

/// Brings the microbatch losses of a step from the ranks that compute them to rank 0.
class LossGathering {
 public:
  /// `bound` and `channel` must outlive it.
  LossGathering(const BoundModel& bound, int rank, Channel& channel);

  /// Sends the next step's losses of this rank's microbatches; nothing on ranks that have none.
  void send(const MicrobatchLosses& losses);
  /// On rank 0: the next step's losses by microbatch; `first` is the number of its first one. Throws PeerError as
  /// Receiving::wait.
  [[nodiscard]] std::vector<double> receive(int first);
  /// Returns when all that was sent has left.
  void finish();

 private:
  const BoundPlan& plan_;
  int stage_;                 // that computes losses
  std::vector<int> sources_;  // its ranks, by replica
  int rank_;
  Channel& channel_;
  std::vector<std::vector<double>> own_;
  std::vector<std::unique_ptr<Sending>> sending_;
};

}  // namespace stagecraft
