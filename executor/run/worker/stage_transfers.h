#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "executor/channel/channel.h"

namespace stagecraft::run {

/// Transfers over a plan's boundaries, seen from one rank: between ranks over the channel, between two stages of this
/// rank directly. Boundaries are indices into Plan::boundaries; `gradient` means the way back.
class StageTransfers {
 public:
  /// `microbatches`: number in the action list. Plan and channel must outlive this.
  StageTransfers(const BoundPlan& plan, int rank, channel::Channel& channel, int microbatches);

  /// Posts the receives of a ReceiveActivation or ReceiveGradient.
  void post(const Action& action);
  /// Sends what `tensors[slots[t]]` holds for tensor t of the action's boundary, having checked it against the plan.
  void send(const Action& action, const std::vector<int>& slots, const std::vector<at::Tensor>& tensors);
  /// Passes an output of a Forward or Backward to a stage of this rank, which needs no message; else does nothing.
  void hand_over(const Action& action, const Passage& output, const std::vector<int>& slots,
                 const std::vector<at::Tensor>& tensors);
  /// Waits for an input of `microbatch`, and adds its tensors to `out` in the order of the plan.
  void take(const Passage& input, int microbatch, std::vector<at::Tensor>& out);
  /// Releases finished sends, once there are many or they hold much memory.
  void reap_sends();
  /// Waits for all sends.
  void finish_sends();

 private:
  /// Replaces `out` by the message's tensors, having checked them against the plan.
  void collect(const Action& action, int boundary, bool gradient, const std::vector<int>& slots,
               const std::vector<at::Tensor>& tensors, std::vector<at::Tensor>& out) const;

  const BoundPlan& plan_;
  int rank_;
  channel::Channel& channel_;
  /// What crosses a boundary in one direction.
  struct BoundaryMessage {
    std::vector<std::size_t> tensors;        // their places in the boundary
    std::vector<channel::TensorSpec> specs;  // one per tensor
    std::vector<int> tags;
  };
  std::vector<BoundaryMessage> messages_[2];  // [gradient][boundary]
  // [gradient][boundary][microbatch]: posted receives, or values handed over by a stage on this rank.
  std::vector<std::vector<std::vector<std::unique_ptr<channel::Receiving>>>> posted_[2];
  std::vector<std::vector<std::vector<at::Tensor>>> handed_[2];
  std::vector<std::unique_ptr<channel::Sending>> sending_;
  std::vector<std::size_t> sending_bytes_;  // one per send; a message's bytes are stored with its last send
  std::size_t sent_bytes_ = 0;              // their sum
  std::vector<at::Tensor> outgoing_;        // of the message being sent
};

/// "rank 1, stage 2, backward of microbatch 3".
[[nodiscard]] std::string describe(int rank, const Action& action);

}  // namespace stagecraft::run
