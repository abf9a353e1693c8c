#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "executor/channel/channel.h"
#include "executor/run/binding/bound_model.h"
#include "executor/stage/step_losses.h"

namespace stagecraft::run {

/// Brings the microbatch losses of a step from the ranks that compute them to rank 0.
class LossGathering {
 public:
  /// `bound` and `channel` must outlive it.
  LossGathering(const BoundModel& bound, int rank, channel::Channel& channel);

  /// Sends the next step's losses of this rank's microbatches; no effect on ranks without losses.
  void send(const stage::MicrobatchLosses& losses);
  /// On rank 0: posts the receives of a step's losses, whose first microbatch is `first`, so that they arrive while
  /// this rank works. Steps in order, each before `receive` returns it.
  void expect(int first);
  /// On rank 0: the next step's losses by microbatch; `first` is the number of the first one. Throws PeerError as
  /// Receiving::wait does.
  [[nodiscard]] std::vector<double> receive(int first);
  /// Returns when everything has been sent.
  void finish();

 private:
  /// One rank's losses of a step.
  struct Expected {
    std::vector<int> microbatches;
    std::unique_ptr<channel::Receiving> arrival;  // none: rank 0 itself
  };

  const BoundPlan& plan_;
  int stage_;                 // stage that computes losses
  std::vector<int> sources_;  // its ranks, by replica
  int rank_;
  channel::Channel& channel_;
  std::vector<std::vector<double>> own_;
  std::deque<std::vector<Expected>> expected_;  // by step
  std::vector<std::unique_ptr<channel::Sending>> sending_;
};

}  // namespace stagecraft::run
