#include "costmodel/scheduling/building_blocks.h"

namespace stagecraft::scheduling {

ScheduleEntry one_forward_one_backward_schedule() {
  return {.name = "1f1b",
          .help = "warm-up, then one forward and one backward in turn",
          .compute_actions = one_forward_one_backward,
          .in_flight_bound = warmup_and_one,
          .replicated = true,
          .alternates = true};
}

}  // namespace stagecraft::scheduling
