#include "costmodel/scheduling/building_blocks.h"

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
          .in_flight_bound = most_own,
          .replicated = true};
}

}  // namespace stagecraft::scheduling
