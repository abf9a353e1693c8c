#include "partitioner/costs/action_replay.h"

#include <algorithm>
#include <numeric>

#include "costmodel/index.h"

namespace stagecraft::partitioner {
namespace {

constexpr Seconds kNotYet(-1);

void use(PortUse& port, Seconds at, Seconds time) {
  port.first = std::min(port.first, at);
  port.sum += time;
}

}  // namespace

ActionReplay::ActionReplay(const Topology& topology, int microbatches, const std::vector<int>& replicas,
                           const std::vector<int>& first_rank, const std::vector<int>& device_of_rank,
                           const std::vector<StageSums>& sums, const std::vector<StageLink>& links,
                           const std::vector<std::vector<Action>>& lists)
    : topology_(topology),
      microbatches_(microbatches),
      replicas_(replicas),
      first_rank_(first_rank),
      device_of_rank_(device_of_rank),
      sums_(sums),
      links_(links),
      lists_(lists),
      incoming_(sums.size()),
      outgoing_(sums.size()),
      now_(lists.size()),
      ports_(lists.size()) {
  for (int l = 0; l < to_int(links.size()); ++l) {
    const StageLink& link = links[to_index(l)];
    incoming_[to_index(link.to)].push_back(l);
    outgoing_[to_index(link.from)].push_back(l);
    cycle_.push_back(std::min(microbatches, std::lcm(replicas[to_index(link.from)], replicas[to_index(link.to)])));
  }
  for (Way* way : {&forward_, &back_}) {
    way->arrived.assign(links.size() * to_index(microbatches), kNotYet);
    way->lane_free.assign(links.size() * to_index(microbatches), Seconds(0));
    way->done.assign(sums.size() * to_index(microbatches), kNotYet);
  }
  splits_.assign(sums.size() * to_index(microbatches), false);
  for (const auto& list : lists) {
    for (const Action& action : list) {
      if (action.kind == ActionKind::WeightGradient) splits_[slot(action.stage, action.microbatch)] = true;
    }
  }
}

/// The earliest time from `at` on at which the action can begin; below 0 if that is not known yet.
Seconds ActionReplay::ready(const Action& action, Seconds at) const {
  if (action.kind == ActionKind::WeightGradient) return at;
  const bool back = action.kind == ActionKind::Backward;
  if (back && forward_.done[slot(action.stage, action.microbatch)] < Seconds(0)) return kNotYet;
  const Way& way = back ? back_ : forward_;
  for (const int l : (back ? outgoing_ : incoming_)[to_index(action.stage)]) {
    if (back && !links_[to_index(l)].gradient) continue;
    const Seconds arrived = way.arrived[slot(l, action.microbatch)];
    if (arrived < Seconds(0)) return kNotYet;
    at = std::max(at, arrived);
  }
  return at;
}

/// Records a message that is sent at `at`.
void ActionReplay::send(int l, bool back, int microbatch, Seconds at) {
  const StageLink& link = links_[to_index(l)];
  const int earlier = runner(link.from, microbatch);
  const int later = runner(link.to, microbatch);
  if (back) {
    use(ports_[to_index(later)].gradients_out, at, link.port_back);
    use(ports_[to_index(earlier)].gradients_in, at, link.port_back);
  } else {
    use(ports_[to_index(earlier)].activations_out, at, link.port);
    use(ports_[to_index(later)].activations_in, at, link.port);
  }
  Way& way = back ? back_ : forward_;
  Seconds& arrived = way.arrived[slot(l, microbatch)];
  arrived = at;
  if (earlier == later) return;
  const auto level =
      to_index(joining_level(topology_, device_of_rank_[to_index(earlier)], device_of_rank_[to_index(later)]));
  Seconds& lane = way.lane_free[slot(l, microbatch % cycle_[to_index(l)])];
  arrived = std::max(at, lane) + (back ? link.back : link.forward)[level];
  lane = arrived;
}

void ActionReplay::compute(std::size_t rank, const Action& action, Seconds start) {
  const StageSums& stage = sums_[to_index(action.stage)];
  const bool back = action.kind == ActionKind::Backward;
  const Seconds backward =
      stage.whole_backward && !splits_[slot(action.stage, action.microbatch)] ? *stage.whole_backward : stage.backward;
  now_[rank] = start + (action.kind == ActionKind::Forward ? stage.forward : back ? backward : stage.weights);
  if (action.kind == ActionKind::WeightGradient) return;
  (back ? back_ : forward_).done[slot(action.stage, action.microbatch)] = now_[rank];
  for (const int l : (back ? incoming_ : outgoing_)[to_index(action.stage)]) {
    if (!back || links_[to_index(l)].gradient) send(l, back, action.microbatch, now_[rank]);
  }
}

bool ActionReplay::run() {
  return replay_lists(lists_, [this](std::size_t rank, const Action& action) {
    const Seconds start = ready(action, now_[rank]);
    if (start < Seconds(0)) return false;
    compute(rank, action, start);
    return true;
  });
}

}  // namespace stagecraft::partitioner
