#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/scheduling/building_blocks.h"

namespace stagecraft::scheduling {
namespace {

const std::vector<Action>& listed(const PipelineShape& shape, int position, int replica) {
  int rank = replica;
  for (int d = 0; d < position; ++d) rank += replicas_of(shape, d);
  return shape.listed[to_index(rank)];
}

/// The maximum over the position's replicas, see ScheduleEntry::in_flight_bound.
int listed_in_flight(const PipelineShape& shape, int position) {
  int most = 0;
  for (int replica = 0; replica < replicas_of(shape, position); ++replica) {
    std::map<std::pair<int, int>, ActionKind> release;
    const std::vector<Action>& list = listed(shape, position, replica);
    for (const Action& a : list) {
      if (a.kind == ActionKind::Backward) release.emplace(std::pair(a.stage, a.microbatch), a.kind);
      if (a.kind == ActionKind::WeightGradient) release[{a.stage, a.microbatch}] = a.kind;
    }
    std::set<std::pair<int, int>> in_flight;
    for (const Action& a : list) {
      if (a.kind == ActionKind::Forward) in_flight.insert({a.stage, a.microbatch});
      most = std::max(most, to_int(in_flight.size()));
      const auto it = release.find({a.stage, a.microbatch});
      if (it == release.end() || it->second == a.kind) in_flight.erase({a.stage, a.microbatch});
    }
  }
  return most;
}

}  // namespace

ScheduleEntry listed_schedule() {
  return {.name = "listed",
          .help = "the action lists of the plan",
          .compute_actions = listed,
          .in_flight_bound = listed_in_flight,
          .chunked = true,
          .mixes_backwards = true,
          .needs_lists = true};
}

}  // namespace stagecraft::scheduling
