#include "costmodel/scheduling/building_blocks.h"

namespace stagecraft::scheduling {
namespace {

/// 1F1B over the microbatches of all steps, with the Updates of `update_of`.
std::vector<Action> without_flush(const ScheduleEntry& schedule, const PipelineShape& shape, int position,
                                  int replica) {
  std::vector<Action> out;
  int updates = 0;
  const auto update_up_to = [&](int number) {
    for (; updates < number; ++updates) out.push_back({ActionKind::Update, position, -1, -1});
  };
  const int replicas = replicas_of(shape, position);
  const int last = update_of(schedule, shape, position, all_microbatches(shape) - 1);
  for (const Action& action : one_forward_one_backward(shape, position, replica)) {
    out.push_back(action);
    if (action.kind != ActionKind::Backward) continue;
    // An Update comes as early as possible, right after its last gradient.
    const int next = action.microbatch + replicas;
    update_up_to(next < all_microbatches(shape) ? update_of(schedule, shape, position, next) : last + 1);
  }
  update_up_to(last + 1);
  return out;
}

ScheduleEntry asynchronous_entry(const std::string& name, const std::string& help, Weights weights) {
  ScheduleEntry entry;
  entry.name = name;
  entry.help = "asynchronous: 1f1b that never drains, an update after every " + help;
  entry.in_flight_bound = warmup_and_one;
  entry.weights = weights;
  const ScheduleEntry rule = entry;
  entry.compute_actions = [rule](const PipelineShape& shape, int position, int replica) {
    return without_flush(rule, shape, position, replica);
  };
  return entry;
}

}  // namespace

/// Source: Narayanan et al., SOSP 2019.
ScheduleEntry pipedream_schedule() {
  return asynchronous_entry("pipedream", "backward, or after every round of the replicas (Narayanan et al., SOSP 2019)",
                            Weights::Newest);
}

/// Source: Narayanan et al., ICML 2021.
ScheduleEntry pipedream_2bw_schedule() {
  return asynchronous_entry("pipedream-2bw", "step, gradients one step late (Narayanan et al., ICML 2021)",
                            Weights::StepBefore);
}

}  // namespace stagecraft::scheduling
