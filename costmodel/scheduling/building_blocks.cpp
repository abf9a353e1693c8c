#include "costmodel/scheduling/building_blocks.h"

#include <algorithm>

namespace stagecraft::scheduling {

int replicas_of(const PipelineShape& shape, int stage) {
  return shape.replicas.empty() ? 1 : shape.replicas[static_cast<std::size_t>(stage)];
}

int all_microbatches(const PipelineShape& shape) { return shape.microbatches * shape.steps; }

std::vector<int> own_of(const PipelineShape& shape, int stage, int replica) {
  return own_microbatches(all_microbatches(shape), replicas_of(shape, stage), replica);
}

int most_own(const PipelineShape& shape, int stage) {
  const int replicas = replicas_of(shape, stage);
  return (all_microbatches(shape) + replicas - 1) / replicas;
}

std::vector<Action> one_forward_one_backward(const PipelineShape& shape, int position, int replica) {
  const std::vector<int> own = own_of(shape, position, replica);
  const std::size_t warmup =
      std::min(own.size(), static_cast<std::size_t>(shape.warmups[static_cast<std::size_t>(position)]));
  std::vector<Action> out;
  for (std::size_t i = 0; i < own.size() + warmup; ++i) {
    if (i < own.size()) out.push_back(compute(ActionKind::Forward, position, own[i]));
    if (i >= warmup) out.push_back(compute(ActionKind::Backward, position, own[i - warmup]));
  }
  return out;
}

int warmup_and_one(const PipelineShape& shape, int position) {
  return std::min(most_own(shape, position), shape.warmups[static_cast<std::size_t>(position)] + 1);
}

}  // namespace stagecraft::scheduling
