#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/simulation/simulation_input.h"
#include "costmodel/units.h"

namespace stagecraft::simulation {

/// The ranks that wait for each other in a Reduce: those with a Reduce of one of BoundPlan::reduce_groups. Only
/// its constructor allocates.
class ReduceGroups {
 public:
  struct Member {
    int rank;
    int stage;  ///< of the Reduce at which it waits
    Seconds since;
  };

  /// Refers to `input`.
  explicit ReduceGroups(const SimulationInput& input);

  /// Whether entry `entry` of the rank's list, a Reduce, is the last Reduce of its group in that list. If a rank has
  /// several stages in a group, only its last Reduce waits and does the work.
  [[nodiscard]] bool is_last(int rank, std::size_t entry) const;

  /// A rank comes to its last Reduce. If it is the last member of the group to come, returns all members in the order
  /// in which they came, and empties the group; otherwise returns none. The result is valid until the group's next
  /// `join`.
  [[nodiscard]] std::span<const Member> join(const Member& member);
  /// The number of ranks that wait in the group.
  [[nodiscard]] std::size_t waiting(int group) const { return groups_[to_index(group)].come; }
  /// Groups have numbers below this one.
  [[nodiscard]] int count() const { return to_int(groups_.size()); }

  /// Time from `now`, when the last of the members has come, to the end of their sum: what their buckets have left,
  /// then the sum over replicas of all their stages in the group, then that of tied parameters.
  [[nodiscard]] Seconds time(std::span<const Member> members, Seconds now);

 private:
  struct Group {
    std::vector<Member> members;  // as many as ranks have a Reduce of the group
    std::size_t come = 0;
  };
  [[nodiscard]] int group_of(int stage) const { return input_.plan.reduce_groups()[to_index(stage)]; }
  [[nodiscard]] Seconds buckets_left(std::span<const Member> members, Seconds now);

  const SimulationInput& input_;
  std::vector<Group> groups_;    // by the number that BoundPlan::reduce_groups gives them
  std::vector<Seconds> latest_;  // by stage: when its last member came, or kNobody; used only within `time`
};

}  // namespace stagecraft::simulation
