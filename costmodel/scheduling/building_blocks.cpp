#include "costmodel/scheduling/building_blocks.h"

#include <algorithm>
#include <deque>

#include "costmodel/index.h"

namespace stagecraft::scheduling {

int replicas_of(const PipelineShape& shape, int stage) {
  return shape.replicas.empty() ? 1 : shape.replicas[to_index(stage)];
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
  const std::vector<int> microbatches = own_of(shape, position, replica);
  const std::size_t warmup = std::min(microbatches.size(), to_index(shape.warmups[to_index(position)]));
  std::vector<Action> out;
  for (std::size_t i = 0; i < microbatches.size() + warmup; ++i) {
    if (i < microbatches.size()) out.push_back(compute(ActionKind::Forward, position, microbatches[i]));
    if (i >= warmup) out.push_back(compute(ActionKind::Backward, position, microbatches[i - warmup]));
  }
  return out;
}

std::vector<Action> with_weight_gradients(const std::vector<Action>& list, int position) {
  std::vector<Action> out;
  std::deque<Action> pending;
  for (const Action& action : list) {
    out.push_back(action);
    if (action.kind != ActionKind::Backward) continue;
    pending.push_back(compute(ActionKind::WeightGradient, action.stage, action.microbatch));
    if (to_int(pending.size()) <= position) continue;
    out.push_back(pending.front());
    pending.pop_front();
  }
  out.insert(out.end(), pending.begin(), pending.end());
  return out;
}

int warmup_and_one(const PipelineShape& shape, int position) {
  return std::min(most_own(shape, position), shape.warmups[to_index(position)] + 1);
}

}  // namespace stagecraft::scheduling
