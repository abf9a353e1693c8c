#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/schedule.h"
#include "costmodel/simulation/hosts.h"
#include "costmodel/simulation/simulation_input.h"
#include "costmodel/units.h"

namespace stagecraft::simulation {

/// One directed edge between two replicas for one boundary and direction: messages are sent one at a time, in order.
struct Lane : MovingMessage {
  int boundary = 0;
  bool gradient = false;
  bool busy = false;
  Seconds started{};                     ///< of the moving message
  std::size_t moved = 0;                 ///< messages that have arrived
  std::vector<int> sent = {};            ///< microbatches in the order of sending
  std::vector<int> posted = {};          ///< and of receiving
  std::optional<MessageCost> cost = {};  ///< see Lanes::cost
};

/// The lanes of a plan, by number.
class Lanes {
 public:
  /// Allocates room for every message of all steps. Refers to `input`.
  explicit Lanes(const SimulationInput& input);

  [[nodiscard]] int count() const { return to_int(lanes_.size()); }
  [[nodiscard]] Lane& operator[](int id) { return lanes_[to_index(id)]; }
  [[nodiscard]] const Lane& operator[](int id) const { return lanes_[to_index(id)]; }
  [[nodiscard]] const std::vector<Lane>& all() const { return lanes_; }

  /// The lane of a Send or Receive. Throws std::invalid_argument if there is no boundary between its stages.
  [[nodiscard]] int of(const Action& message) const {
    const std::optional<int> boundary = input_.plan.boundary(message.stage, message.peer);
    if (!boundary) refuse(message);
    const Cycle& cycle = cycles_[to_index(*boundary)];
    return cycle.first + 2 * (message.microbatch % cycle.length) + (carries_gradient(message.kind) ? 1 : 0);
  }
  /// The cost of each message of the lane. SimulationInput::transfer is called once per lane.
  const MessageCost& cost(Lane& lane) const {
    if (!lane.cost) set_cost(lane);
    return *lane.cost;
  }

 private:
  [[noreturn]] static void refuse(const Action& message);
  void set_cost(Lane& lane) const;

  struct Cycle {
    int first;   // lane of microbatch 0; each microbatch has two, activation and gradient
    int length;  // microbatches after which the same replicas meet again
  };

  const SimulationInput& input_;
  const MessageCosts costs_;
  std::vector<Cycle> cycles_;  // by boundary
  std::vector<Lane> lanes_;
};

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

/// Which ranks have the whole parameters of their stages. A gather goes on once all members have come to it: the ranks
/// that have a Gather of its stage. Gathers of the same members go on one after the other.
class Gathers {
 public:
  explicit Gathers(const std::vector<std::vector<Action>>& lists);

  /// A rank comes to its next Gather of the stage: the stage whose gather begins to go on then, if one does.
  [[nodiscard]] std::optional<int> begin(int rank, int stage);
  /// The stage's gather that goes on ends: the stage whose gather goes on next, if one does.
  [[nodiscard]] std::optional<int> end(int stage);
  /// Whether all gathers of the stage that the rank has come to have ended.
  [[nodiscard]] bool is_whole(int rank, int stage) const;
  /// The members of the stage's gathers; none if nobody gathers it.
  [[nodiscard]] const std::vector<int>& members(int stage) const { return members_[to_index(stage)]; }
  /// A member that has not come to the gather that `rank` waits for; -1 if all have.
  [[nodiscard]] int missing(int rank, int stage) const;
  /// Appends what distinguishes the state from another one.
  void append_state(std::vector<std::int64_t>& out) const;

 private:
  [[nodiscard]] int begun(int rank, int stage) const;
  [[nodiscard]] std::deque<int>& queue(int stage) { return queues_[to_index(members(stage).front())]; }

  std::vector<std::vector<int>> members_;  // by stage, ascending
  std::vector<std::vector<int>> begun_;    // by stage and member: gathers that it has come to
  std::vector<int> ended_;                 // by stage: gathers
  std::vector<std::deque<int>> queues_;    // by first member: stages that all have come to, the first goes on
};

}  // namespace stagecraft::simulation
