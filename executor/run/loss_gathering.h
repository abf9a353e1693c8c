#pragma once

#include <memory>
#include <vector>

#include "costmodel/plan.h"
#include "executor/channel/channel.h"
#include "executor/model/layer_source.h"
#include "executor/stage/step_losses.h"

namespace stagecraft {

/// Brings the microbatch losses of a step from the ranks that compute them to rank 0.
class LossGathering {
 public:
  /// `plan` and `channel` must outlive it.
  LossGathering(const Plan& plan, const Model& model, int rank, Channel& channel);

  /// Sends the next step's losses of this rank's microbatches; nothing on ranks that have none.
  void send(const MicrobatchLosses& losses);
  /// On rank 0: the next step's losses by microbatch; `first` is the number of its first one. Throws PeerError as
  /// Receiving::wait.
  [[nodiscard]] std::vector<double> receive(int first);
  /// Returns when all that was sent has left.
  void finish();

 private:
  const Plan& plan_;
  std::vector<int> sources_;  // ranks that compute losses, by replica
  int rank_;
  Channel& channel_;
  std::vector<std::vector<double>> own_;
  std::vector<std::unique_ptr<Sending>> sending_;
};

}  // namespace stagecraft
