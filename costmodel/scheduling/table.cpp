#include "costmodel/schedule.h"

namespace stagecraft {

// The table. Each file of schedules provides its entries.
namespace scheduling {
ScheduleEntry gpipe_schedule();
ScheduleEntry one_forward_one_backward_schedule();
ScheduleEntry looped_bfs_schedule();
ScheduleEntry interleaved_schedule();
ScheduleEntry zero_bubble_h1_schedule();
ScheduleEntry interleaved_zero_bubble_schedule();
ScheduleEntry zb_v_schedule();
ScheduleEntry v_half_schedule();
ScheduleEntry v_min_schedule();
ScheduleEntry dualpipev_schedule();
ScheduleEntry pipedream_schedule();
ScheduleEntry pipedream_2bw_schedule();
ScheduleEntry forward_schedule();
ScheduleEntry listed_schedule();
}  // namespace scheduling

const std::vector<ScheduleEntry>& schedules() {
  using namespace scheduling;
  static const std::vector<ScheduleEntry> table{
      gpipe_schedule(),          one_forward_one_backward_schedule(),
      interleaved_schedule(),    looped_bfs_schedule(),
      zero_bubble_h1_schedule(), interleaved_zero_bubble_schedule(),
      zb_v_schedule(),           v_half_schedule(),
      v_min_schedule(),          dualpipev_schedule(),
      pipedream_schedule(),      pipedream_2bw_schedule(),
      forward_schedule(),        listed_schedule(),
  };
  return table;
}

}  // namespace stagecraft
