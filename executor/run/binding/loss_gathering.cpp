#include "executor/run/binding/loss_gathering.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"

namespace stagecraft::run {
namespace {

constexpr std::size_t kManySends = 4;

}  // namespace

LossGathering::LossGathering(const BoundModel& bound, int rank, channel::Channel& channel)
    : plan_(bound.plan),
      stage_(loss_stage(bound)),
      sources_(bound.plan.ranks_of(stage_)),
      rank_(rank),
      channel_(channel) {}

void LossGathering::send(const stage::MicrobatchLosses& losses) {
  std::vector<double> sent;
  for (const auto& [microbatch, loss] : losses) sent.push_back(loss);
  if (sent.empty() || std::ranges::find(sources_, rank_) == sources_.end()) return;
  if (rank_ == 0) {
    own_.push_back(std::move(sent));
    return;
  }
  at::Tensor values = at::empty({static_cast<std::int64_t>(sent.size())}, at::kDouble);
  std::ranges::copy(sent, values.data_ptr<double>());
  sending_.push_back(channel_.send(values, 0, channel::kLossTag));
  if (sending_.size() > kManySends) {
    sending_.front()->wait();
    sending_.erase(sending_.begin());
  }
}

void LossGathering::expect(int first) {
  std::vector<Expected>& step = expected_.emplace_back();
  for (const int source : sources_) {
    std::vector<int> computed = plan_.microbatches_of(stage_, source, plan_.plan().microbatches, first);
    if (computed.empty()) continue;
    std::unique_ptr<channel::Receiving> arrival;
    if (source != 0) {
      const channel::TensorSpec spec{{static_cast<std::int64_t>(computed.size())}, at::kDouble};
      arrival = channel_.receive(spec, source, channel::kLossTag);
    }
    step.push_back({std::move(computed), std::move(arrival)});
  }
}

std::vector<double> LossGathering::receive(int first) {
  if (expected_.empty()) expect(first);
  std::vector<double> losses(to_index(plan_.plan().microbatches));
  for (const Expected& expected : expected_.front()) {
    const std::vector<int>& computed = expected.microbatches;
    std::vector<double> values;
    if (!expected.arrival) {
      values = own_.front();
      own_.erase(own_.begin());
    } else {
      const at::Tensor arrived = expected.arrival->wait();
      values.assign(arrived.const_data_ptr<double>(), arrived.const_data_ptr<double>() + computed.size());
    }
    for (std::size_t i = 0; i < computed.size(); ++i) losses[to_index(computed[i] - first)] = values[i];
  }
  expected_.pop_front();
  return losses;
}

void LossGathering::finish() {
  try {
    for (const auto& sending : sending_) sending->wait();
  } catch (const meeting::PeerError& e) { throw e.within("rank " + std::to_string(rank_) + ", sending losses: "); }
  sending_.clear();
}

}  // namespace stagecraft::run
