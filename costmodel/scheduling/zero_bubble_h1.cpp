#include <algorithm>
#include <deque>

#include "costmodel/index.h"
#include "costmodel/scheduling/building_blocks.h"

namespace stagecraft::scheduling {
namespace {

/// Weight gradients wait while at most `position` of them are pending. Source: Qi et al., ICLR 2024 (ZB-H1).
std::vector<Action> zero_bubble_h1(const PipelineShape& shape, int position, int /*replica*/) {
  std::vector<Action> out;
  std::deque<int> pending;
  for (const Action& action : one_forward_one_backward(shape, position, 0)) {
    out.push_back(action);
    if (action.kind != ActionKind::Backward) continue;
    pending.push_back(action.microbatch);
    if (to_int(pending.size()) > position) {
      out.push_back(compute(ActionKind::WeightGradient, position, pending.front()));
      pending.pop_front();
    }
  }
  for (const int m : pending) out.push_back(compute(ActionKind::WeightGradient, position, m));
  return out;
}

int most_in_flight(const PipelineShape& shape, int position) {
  return std::min(shape.microbatches, warmup_and_one(shape, position) + position);
}

}  // namespace

ScheduleEntry zero_bubble_h1_schedule() {
  return {.name = "zb-h1",
          .help = "1f1b with weight gradients moved into idle time (Qi et al., ICLR 2024)",
          .compute_actions = zero_bubble_h1,
          .in_flight_bound = most_in_flight,
          .splits_backward = true};
}

}  // namespace stagecraft::scheduling
