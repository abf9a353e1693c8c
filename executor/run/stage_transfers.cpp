#include "executor/run/stage_transfers.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

#include "costmodel/index.h"
#include "executor/channel/channel_checks.h"
#include "executor/device/dtype.h"

namespace stagecraft::run {
namespace {

constexpr std::size_t kManySends = 32;

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
  for (const Boundary& boundary : boundaries) {
    specs_.emplace_back();
    for (const BoundaryTensor& tensor : boundary.tensors)
      specs_.back().push_back({tensor.shape, device::dtype_of(tensor.dtype)});
  }
  for (const bool gradient : {false, true}) {
    posted_[gradient].resize(boundaries.size());
    handed_[gradient].resize(boundaries.size());
    for (auto& by_microbatch : posted_[gradient]) by_microbatch.resize(to_index(microbatches));
    for (auto& by_microbatch : handed_[gradient]) by_microbatch.resize(to_index(microbatches));
  }
}

void StageTransfers::post(const Action& action) {
  const bool gradient = action.kind == ActionKind::ReceiveGradient;
  const int b = *plan_.boundary(action.stage, action.peer);
  const int from = plan_.runner(action.peer, action.microbatch);
  auto& posted = posted_[gradient][to_index(b)][to_index(action.microbatch)];
  const auto& tensors = plan_.plan().boundaries[to_index(b)].tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (gradient && !tensors[t].gradient) continue;
    posted.push_back(channel_.receive(specs_[to_index(b)][t], from, plan_.tag(b, t, gradient)));
  }
}

at::Tensor StageTransfers::planned(const Action& action, int boundary, std::size_t t, const at::Tensor& tensor) const {
  at::Tensor out = tensor.detach().contiguous();
  const channel::TensorSpec& spec = specs_[to_index(boundary)][t];
  if (!channel::same_spec(spec, out)) {
    throw std::invalid_argument(describe(rank_, action) + ": layer \"" +
                                plan_.plan().boundaries[to_index(boundary)].tensors[t].layer + "\" gives " +
                                describe(channel::spec_of(out)) + ", the plan has " + describe(spec) +
                                "; profile and plan the model again");
  }
  return out;
}

void StageTransfers::send(const Action& action, const std::vector<int>& slots, const std::vector<at::Tensor>& tensors) {
  const bool gradient = action.kind == ActionKind::SendGradient;
  const int b = *plan_.boundary(action.stage, action.peer);
  const int to = plan_.runner(action.peer, action.microbatch);
  const auto& joined = plan_.plan().boundaries[to_index(b)].tensors;
  for (std::size_t t = 0; t < joined.size(); ++t) {
    if (gradient && !joined[t].gradient) continue;
    sending_.push_back(
        channel_.send(planned(action, b, t, tensors[to_index(slots[t])]), to, plan_.tag(b, t, gradient)));
  }
}

void StageTransfers::hand_over(const Action& action, int boundary, bool gradient, const std::vector<int>& slots,
                               const std::vector<at::Tensor>& tensors) {
  const Boundary& joined = plan_.plan().boundaries[to_index(boundary)];
  if (plan_.runner(gradient ? joined.source : joined.destination, action.microbatch) != rank_) return;
  for (std::size_t t = 0; t < joined.tensors.size(); ++t) {
    if (gradient && !joined.tensors[t].gradient) continue;
    handed_[gradient][to_index(boundary)][to_index(action.microbatch)].push_back(
        planned(action, boundary, t, tensors[to_index(slots[t])]));
  }
}

void StageTransfers::take(int boundary, bool gradient, int microbatch, std::vector<at::Tensor>& out) {
  auto& handed = handed_[gradient][to_index(boundary)][to_index(microbatch)];
  std::ranges::move(handed, std::back_inserter(out));
  handed.clear();
  auto& posted = posted_[gradient][to_index(boundary)][to_index(microbatch)];
  for (const auto& receiving : posted) out.push_back(receiving->wait());
  posted.clear();
}

void StageTransfers::reap_sends() {
  // A query costs a thread on Gloo, so a few finished sends may stay.
  if (sending_.size() >= kManySends) std::erase_if(sending_, [](const auto& sending) { return sending->done(); });
}

void StageTransfers::finish_sends() {
  for (const auto& sending : sending_) sending->wait();
  sending_.clear();
}

}  // namespace stagecraft::run
