#pragma once

#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/schedule.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"
#include "partitioner/costs/stage_sums.h"

namespace stagecraft::partitioner {

/// Goes through the lists of all ranks, each in order. `perform(rank, action)` returns whether the action could be
/// done; an action that waits for another rank is tried again after the other ranks moved on. False if the lists
/// deadlock.
template <class Perform>
bool replay_lists(const std::vector<std::vector<Action>>& lists, Perform&& perform) {
  std::vector<std::size_t> next(lists.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      for (; next[rank] < lists[rank].size() && perform(rank, lists[rank][next[rank]]); ++next[rank]) moved = true;
    }
  }
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    if (next[rank] < lists[rank].size()) return false;
  }
  return true;
}

/// The longest path through the action lists of a split: each action takes as long as it takes
/// alone, and the messages of one boundary between two ranks come one after the other.
class ActionReplay {
 public:
  /// `replicas` and `first_rank`: of each stage. `device_of_rank`: of each rank. All arguments must outlive it.
  ActionReplay(const Topology& topology, int microbatches, const std::vector<int>& replicas,
               const std::vector<int>& first_rank, const std::vector<int>& device_of_rank,
               const std::vector<StageSums>& sums, const std::vector<StageLink>& links,
               const std::vector<std::vector<Action>>& lists);

  /// Goes through all actions. False if the lists deadlock.
  [[nodiscard]] bool run();

  /// When each rank's last computation ends.
  [[nodiscard]] const std::vector<Seconds>& ends() const { return now_; }
  /// The messages that pass through each rank's ports.
  [[nodiscard]] const std::vector<PortUses>& ports() const { return ports_; }

 private:
  /// The state of one direction: activations forward, or gradients back.
  struct Way {
    std::vector<Seconds> arrived;    ///< by link and microbatch; below 0: not yet
    std::vector<Seconds> lane_free;  ///< by link and microbatch: when the lane of the message's ranks is free again
    std::vector<Seconds> done;       ///< forwards, or backwards, by stage and microbatch; below 0: not yet
  };
  [[nodiscard]] std::size_t slot(int number, int microbatch) const {
    return to_index(number) * to_index(microbatches_) + to_index(microbatch);
  }
  [[nodiscard]] int runner(int stage, int microbatch) const {
    return runner_of(first_rank_[to_index(stage)], replicas_[to_index(stage)], microbatch);
  }
  [[nodiscard]] Seconds ready(const Action& action, Seconds at) const;
  void send(int link, bool back, int microbatch, Seconds at);
  void compute(std::size_t rank, const Action& action, Seconds start);

  const Topology& topology_;
  int microbatches_;
  const std::vector<int>& replicas_;
  const std::vector<int>& first_rank_;
  const std::vector<int>& device_of_rank_;
  const std::vector<StageSums>& sums_;
  const std::vector<StageLink>& links_;
  const std::vector<std::vector<Action>>& lists_;
  std::vector<std::vector<int>> incoming_, outgoing_;  ///< links, by stage
  std::vector<int> cycle_;                             ///< by link: microbatches after which its ranks are the same
  Way forward_, back_;
  std::vector<bool> splits_;  ///< by stage and microbatch: a weight gradient follows the backward
  std::vector<Seconds> now_;
  std::vector<PortUses> ports_;
};

}  // namespace stagecraft::partitioner
