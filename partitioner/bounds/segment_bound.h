#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/costs/pipeline_costs.h"

namespace stagecraft::partitioner {

/// A lower bound of all splits whose stages have the same number r of replicas, with any number of stages per device
/// and devices in any order, by the computation_path.
///
/// Let n be the most microbatches of one replica. Let a segment be a maximal run of the path's nodes on one device of
/// that replica, in one or several of its stages. Let a microbatch take t_i seconds in segment i, before_i seconds in
/// the forwards of segments j < i and their messages, and after_i seconds in the backwards of segments j < i and their
/// messages. Then a step is at least
///   (1) before_i + n t_i + after_i.
/// Proof: let d be the device of segment i.
///   - d computes nothing of segment i before the first microbatch arrives, before_i after the step begins;
///   - d alone computes segment i for the replica, which takes n t_i for all its microbatches;
///   - for each microbatch, the backward of the first stage of segment i follows all other work of segment i. So the
///     last work of segment i is such a backward, whose gradient then passes the segments j < i in after_i.
/// Segments are maximal, so i and i + 1 are on different devices, even if stages off the path lie between them. All n
/// messages from i to i + 1 pass through a port of the device of i + 1. If each takes p_i seconds there, the step is at
/// least
///   (2) before_i + (n - 1) p_i + the rest of the path without messages + after_i.
/// Dynamic programming over the path decides whether any division into segments keeps within a step by (1) and (2).
/// Neither depends on the order of work on a device.
///
/// On D devices there are at most D / r pipeline positions. One of them takes at least the mean over all, of n
/// microbatches, of the sums of gradients over r replicas, and of the updates:
///   (3) (n computation + sums + updates) r / D.
///
/// On several levels and without replicas, (1) and (2) also hold for segments that are maximal on one group of g
/// devices below level l > 0: the group takes at least m t_i / g for m microbatches, and messages between two groups
/// take level l or one farther out.
class SegmentBound {
 public:
  /// Absent if nothing waits (see PipelineCosts::waits), no layer is left, or stages may have different numbers of
  /// replicas. `costs` need not outlive it.
  [[nodiscard]] static std::optional<SegmentBound> of(const PipelineCosts& costs);

  /// True if the bound proves that every split takes longer than `time`. Absent if `stop` ended the proof.
  [[nodiscard]] std::optional<bool> refutes(Seconds time, const std::function<bool()>& stop) const;

 private:
  /// The place between two nodes of the path, or at an end of it.
  struct Cut {
    Seconds computed;  ///< of one microbatch, on the path before it
    Seconds way;       ///< of one microbatch there and back, without messages
    Seconds message;   ///< to the next node and back, if the next node is on another device
    Seconds port;      ///< of a message to the next node
  };
  using Cuts = std::vector<Cut>;  ///< one more than nodes
  /// A range of numbers of replicas.
  struct Replicas {
    bool several = false;
    double share = 1;  ///< the most microbatches of one replica
    Seconds mean;      ///< (3)
  };
  SegmentBound() = default;
  [[nodiscard]] static std::optional<bool> refutes(const Cuts& cuts, double computed, double messages, Seconds most,
                                                   const std::function<bool()>& stop);

  double microbatches_ = 1;
  std::vector<Cuts> levels_;
  std::vector<int> devices_below_;  ///< by level
  std::vector<Replicas> replicas_;
};

}  // namespace stagecraft::partitioner
