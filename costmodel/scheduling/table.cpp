#include "costmodel/schedule.h"

namespace stagecraft {

// The table. Each file of schedules provides its entries.
namespace scheduling {
ScheduleEntry gpipe_schedule();
ScheduleEntry one_forward_one_backward_schedule();
ScheduleEntry interleaved_schedule();
ScheduleEntry zero_bubble_h1_schedule();
ScheduleEntry pipedream_schedule();
ScheduleEntry pipedream_2bw_schedule();
ScheduleEntry forward_schedule();
ScheduleEntry listed_schedule();
}  // namespace scheduling

const std::vector<ScheduleEntry>& schedules() {
  using namespace scheduling;
  static const std::vector<ScheduleEntry> table{
      gpipe_schedule(),       one_forward_one_backward_schedule(),
      interleaved_schedule(), zero_bubble_h1_schedule(),
      pipedream_schedule(),   pipedream_2bw_schedule(),
      forward_schedule(),     listed_schedule(),
  };
  return table;
}

}  // namespace stagecraft
