#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/simulation/flows/transfer.h"
#include "costmodel/simulation/host/host_input.h"
#include "costmodel/units.h"

namespace stagecraft {

/// Gradients that replicas sum during the backward.
struct ReduceBucket {
  Seconds time;        ///< of the all-reduce
  Seconds before_end;  ///< time from completion of its gradients to the end of the last backward
};

/// Cost of one action on a device whose host runs nothing else.
struct StageCost {
  Seconds forward;          ///< of one microbatch
  Seconds backward;         ///< of one microbatch; only the input gradient if the schedule splits the backward
  Seconds weight_gradient;  ///< of one microbatch, if the schedule splits the backward
  Seconds reduce;           ///< of one Reduce, among all replicas
  Seconds update;           ///< of one Update
  Seconds tied = {};  ///< of the part of a Reduce that sums tied parameters over all their holders, after `reduce`
  /// Time of a backward that the lists do not split although they split others, as lists by hand may; absent:
  /// `backward`.
  std::optional<Seconds> whole_backward = {};
  std::vector<ReduceBucket> buckets = {};  ///< that come before `reduce`, one at a time, in this order
};

/// Time of a Forward, Backward, WeightGradient or Update; `splits`: a WeightGradient follows the Backward.
[[nodiscard]] inline Seconds time_of(const StageCost& stage, ActionKind kind, bool splits) {
  if (kind == ActionKind::Forward) return stage.forward;
  if (kind == ActionKind::Backward) return splits ? stage.backward : stage.whole_backward.value_or(stage.backward);
  return kind == ActionKind::WeightGradient ? stage.weight_gradient : stage.update;
}

/// All inputs of a simulation; predict() makes one from graph, topology and plan.
struct SimulationInput {
  BoundPlan plan;                          ///< stages of ranks, boundaries, reduce groups
  std::vector<std::vector<Action>> lists;  ///< one per rank
  std::vector<StageCost> stages;
  int steps = 1;  ///< covered by the lists; microbatch m belongs to step m / microbatches
  TransferMode mode = TransferMode::Rendezvous;
  /// Cost of one message of boundary `boundary` from one rank to another; `gradient`: of the gradient that comes back.
  std::function<Transfer(int boundary, bool gradient, int from_rank, int to_rank)> transfer = {};
  int ports = 0;         ///< number of port ids that `transfer` uses
  HostInput hosts = {};  ///< processors that ranks share; nothing for ranks on GPUs
};

/// Two moments between which a run repeats itself: at `to` everything is as it was at `from`, `microbatches` later, and
/// the lists continue as they did. A run whose lists have that period n more times takes n (to - from) longer.
struct Period {
  Seconds from;
  Seconds to;
  int microbatches = 0;
  std::vector<std::size_t> begin;  ///< for each list, the first action that is not done at `from`
  std::vector<std::size_t> end;    ///< and at `to`
};

/// The repetition that simulate_and_watch looks for, and its findings.
struct PeriodSearch {
  int cycle = 1;                                   ///< microbatches after which the lists of all ranks may repeat
  std::optional<Period> period = {};               ///< out: the first one, if any
  std::function<void(double done)> progress = {};  ///< called now and then with the fraction of actions done
};

}  // namespace stagecraft
