#include "executor/run/worker/stage_transfers.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

#include "costmodel/index.h"
#include "executor/channel/channel.h"
#include "executor/channel/tensor_message.h"
#include "executor/device/dtype.h"

namespace stagecraft::run {
namespace {

// A query costs a thread on Gloo, so a few finished sends of little memory may stay.
constexpr std::size_t kManySends = 32;
constexpr std::size_t kMuchSent = 1 << 18;  // bytes

}  // namespace

std::string describe(int rank, const Action& action) {
  std::string out =
      "rank " + std::to_string(rank) + ", stage " + std::to_string(action.stage) + ", " + to_string(action.kind);
  if (action.microbatch >= 0) out += " of microbatch " + std::to_string(action.microbatch);
  return out;
}

StageTransfers::StageTransfers(const BoundPlan& plan, int rank, channel::Channel& channel, int microbatches)
    : plan_(plan), rank_(rank), channel_(channel) {
  const std::vector<Boundary>& boundaries = plan.plan().boundaries;
  for (const bool gradient : {false, true}) {
    for (std::size_t b = 0; b < boundaries.size(); ++b) {
      BoundaryMessage& message = messages_[gradient].emplace_back();
      const auto& tensors = boundaries[b].tensors;
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        if (gradient && !tensors[t].gradient) continue;
        message.tensors.push_back(t);
        message.specs.push_back({tensors[t].shape, device::dtype_of(tensors[t].dtype)});
        message.tags.push_back(plan.tag(to_int(b), t, gradient));
      }
    }
    posted_[gradient].resize(boundaries.size());
    handed_[gradient].resize(boundaries.size());
    for (auto& by_microbatch : posted_[gradient]) by_microbatch.resize(to_index(microbatches));
    for (auto& by_microbatch : handed_[gradient]) by_microbatch.resize(to_index(microbatches));
  }
}

void StageTransfers::post(const Action& action) {
  const bool gradient = carries_gradient(action.kind);
  const int b = *plan_.boundary(action.stage, action.peer);
  const int from = plan_.runner(action.peer, action.microbatch);
  const BoundaryMessage& message = messages_[gradient][to_index(b)];
  channel_.receive_message(message.specs, from, message.tags,
                           posted_[gradient][to_index(b)][to_index(action.microbatch)]);
}

void StageTransfers::collect(const Action& action, int boundary, bool gradient, const std::vector<int>& slots,
                             const std::vector<at::Tensor>& tensors, std::vector<at::Tensor>& out) const {
  const BoundaryMessage& message = messages_[gradient][to_index(boundary)];
  out.clear();
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    const std::size_t t = message.tensors[i];
    // The other side gets bytes: a conjugate or negative view is computed first.
    const at::Tensor values = tensors[to_index(slots[t])].detach().resolve_conj().resolve_neg();
    out.push_back(channel_.keeps_strides() ? channel::packed(values) : values.contiguous());
    if (channel::same_spec(message.specs[i], out.back())) continue;
    throw std::invalid_argument(describe(rank_, action) + ": layer \"" +
                                plan_.plan().boundaries[to_index(boundary)].tensors[t].layer + "\" gives " +
                                describe(channel::spec_of(out.back())) + ", the plan has " +
                                describe(message.specs[i]) + "; profile and plan the model again");
  }
}

void StageTransfers::send(const Action& action, const std::vector<int>& slots, const std::vector<at::Tensor>& tensors) {
  const bool gradient = carries_gradient(action.kind);
  const int b = *plan_.boundary(action.stage, action.peer);
  collect(action, b, gradient, slots, tensors, outgoing_);
  channel_.send_message(outgoing_, plan_.runner(action.peer, action.microbatch), messages_[gradient][to_index(b)].tags,
                        sending_);
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : outgoing_) bytes += tensor.nbytes();
  sending_bytes_.resize(sending_.size());
  if (!sending_.empty()) sending_bytes_.back() = bytes;
  sent_bytes_ += bytes;
  outgoing_.clear();
}

void StageTransfers::hand_over(const Action& action, const Passage& output, const std::vector<int>& slots,
                               const std::vector<at::Tensor>& tensors) {
  if (plan_.is_message(action, output)) return;
  collect(action, output.boundary, output.gradient, slots, tensors,
          handed_[output.gradient][to_index(output.boundary)][to_index(action.microbatch)]);
}

void StageTransfers::take(const Passage& input, int microbatch, std::vector<at::Tensor>& out) {
  const auto [boundary, peer, gradient] = input;
  auto& handed = handed_[gradient][to_index(boundary)][to_index(microbatch)];
  std::ranges::move(handed, std::back_inserter(out));
  handed.clear();
  auto& posted = posted_[gradient][to_index(boundary)][to_index(microbatch)];
  for (const auto& receiving : posted) out.push_back(receiving->wait());
  posted.clear();
}

void StageTransfers::reap_sends() {
  if (sending_.size() < kManySends && sent_bytes_ < kMuchSent) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < sending_.size(); ++i) {
    if (sending_[i]->done()) {
      sent_bytes_ -= sending_bytes_[i];
      continue;
    }
    if (kept != i) sending_[kept] = std::move(sending_[i]);
    sending_bytes_[kept++] = sending_bytes_[i];
  }
  sending_.resize(kept);
  sending_bytes_.resize(kept);
}

void StageTransfers::finish_sends() {
  for (const auto& sending : sending_) sending->wait();
  sending_.clear();
  sending_bytes_.clear();
  sent_bytes_ = 0;
}

}  // namespace stagecraft::run
