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

  /// Whether entry `entry` of the rank's list, a Reduce, is the last one of its group there. Of a rank with several
  /// stages in a group only that one waits and does the work.
  [[nodiscard]] bool is_last(int rank, std::size_t entry) const;

  /// A rank comes to its last Reduce. The members, in the order in which they came, if it is the last of them, and the
  /// group is empty again; none otherwise. Valid until the group's next `join`.
  [[nodiscard]] std::span<const Member> join(const Member& member);
  /// Ranks of the group with that number that wait.
  [[nodiscard]] std::size_t waiting(int group) const { return groups_[to_index(group)].come; }
  /// Largest number of a group, plus 1.
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
  std::vector<Seconds> latest_;  // scratch, by stage: when its last member came; kNobody otherwise
};

}  // namespace stagecraft::simulation
