#include "costmodel/scheduling/building_blocks.h"

namespace stagecraft::scheduling {
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
          .replicated = true,
          .trains = false};
}

}  // namespace stagecraft::scheduling
