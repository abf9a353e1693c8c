#include "costmodel/scheduling/building_blocks.h"

#include <algorithm>

#include "costmodel/index.h"

namespace stagecraft::scheduling {
namespace {

std::vector<Action> gpipe(const PipelineShape& shape, int position, int replica) {
  const std::vector<int> microbatches = own_of(shape, position, replica);
  std::vector<Action> out;
  for (const int m : microbatches) out.push_back(compute(ActionKind::Forward, position, m));
  for (const int m : microbatches) out.push_back(compute(ActionKind::Backward, position, m));
  return out;
}

}  // namespace

/// All forwards, then all backwards. Source: Huang et al., NeurIPS 2019.
ScheduleEntry gpipe_schedule() {
  return {.name = "gpipe",
          .help = "all forwards, then all backwards",
          .compute_actions = gpipe,
          .in_flight_bound = most_own};
}

namespace {

std::vector<Action> forward_only(const PipelineShape& shape, int position, int replica) {
  std::vector<Action> out;
  for (const int m : own_of(shape, position, replica)) out.push_back(compute(ActionKind::Forward, position, m));
  return out;
}

}  // namespace

ScheduleEntry forward_schedule() {
  return {.name = "forward",
          .help = "forwards only, for evaluation",
          .compute_actions = forward_only,
          .in_flight_bound = [](const PipelineShape&, int) { return 1; },
          .trains = false};
}

ScheduleEntry one_forward_one_backward_schedule() {
  return {.name = "1f1b",
          .help = "warm-up, then one forward and one backward in turn",
          .compute_actions = one_forward_one_backward,
          .in_flight_bound = warmup_and_one,
          .alternates = true};
}

namespace {

std::vector<Action> zero_bubble_h1(const PipelineShape& shape, int position, int replica) {
  return with_weight_gradients(one_forward_one_backward(shape, position, replica), position);
}

int zero_bubble_in_flight(const PipelineShape& shape, int position) {
  return std::min(most_own(shape, position), warmup_and_one(shape, position) + position);
}

}  // namespace

ScheduleEntry zero_bubble_h1_schedule() {
  return {.name = "zb-h1",
          .help = "1f1b with weight gradients moved into idle time (Qi et al., ICLR 2024)",
          .compute_actions = zero_bubble_h1,
          .in_flight_bound = zero_bubble_in_flight,
          .splits_backward = true};
}

}  // namespace stagecraft::scheduling
