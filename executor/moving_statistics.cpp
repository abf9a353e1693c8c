#include "executor/moving_statistics.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include "executor/control_tags.h"

namespace stagecraft {

namespace {

bool moves(const LayerSpec& layer) { return layer.kind == "BatchNorm2d"; }

}  // namespace

std::int64_t moving_values(const Model& model, const std::vector<int>& layers) {
  std::int64_t out = 0;
  for (const int index : layers) {
    const LayerSpec& layer = model.layers[static_cast<std::size_t>(index)];
    if (!moves(layer)) continue;
    for (const ParameterSpec& buffer : layer.parameters) {
      if (buffer.trainable) continue;
      out += c10::multiply_integers(buffer.shape);
    }
  }
  return out;
}

MovingStatistics::MovingStatistics(const Model& model, const StageProgram& program,
                                   const std::function<bool(int)>& wanted) {
  for (const Parameter& buffer : program.buffers()) {
    if (!moves(model.layers[static_cast<std::size_t>(buffer.layer)]) || !wanted(buffer.layer)) continue;
    // With a version count of its own: graphs save running statistics, whose values their backward never reads.
    running_.push_back(buffer.value.variable_data());
    values_ += buffer.value.numel();
  }
}

void MovingStatistics::begin() {
  kept_.clear();
  // A kernel that moves zeros leaves the microbatch's own part.
  for (at::Tensor& each : running_) {
    kept_.push_back(each.clone());
    each.zero_();
  }
}

void MovingStatistics::end(int microbatch) {
  if (running_.empty()) return;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& each : running_) parts.push_back(each.flatten());
  records_[microbatch] = at::cat(parts);
  for (std::size_t i = 0; i < running_.size(); ++i) running_[i].copy_(kept_[i]);
}

void MovingStatistics::exchange(Channel& channel, const std::vector<int>& members, int microbatches) {
  if (running_.empty()) return;
  const at::NoGradGuard no_graph;
  // Zeros but in the rows of this member's own: the sum of all is exact.
  at::Tensor rows = at::zeros({microbatches, values_}, running_.front().options());
  for (const auto& [microbatch, record] : records_) rows.select(0, microbatch).copy_(record);
  channel.all_reduce(rows, members, kStatisticsTag);
  for (int m = 0; m < microbatches; ++m) records_[m] = rows.select(0, m);
}

void MovingStatistics::apply() {
  const at::NoGradGuard no_graph;
  for (const auto& [microbatch, record] : records_) {
    std::int64_t first = 0;
    for (at::Tensor& each : running_) {
      each.mul_(1 - kBatchNormMomentum).add_(record.narrow(0, first, each.numel()).view(each.sizes()));
      first += each.numel();
    }
  }
  records_.clear();
}

}  // namespace stagecraft
