#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/costs/pipeline_costs.h"

namespace stagecraft::partitioner {

/// A lower bound of all splits without replicas, with any number of stages per device and devices in any order, by the
/// computation_path.
///
/// A segment is a longest run of the path's nodes on one device, in one of its stages or in several. Let a microbatch
/// take t_i seconds in segment i, and before_i and after_i in the segments before it and their messages, forward and
/// back. A step of m microbatches is at least
///   before_i + m t_i + after_i, because
///   - nothing of the segment begins before the first microbatch has come to it, before_i after the step began;
///   - one device computes all of it;
///   - what it computes last is a backward of its first stage, as each microbatch's backward there follows all else
///     that the segment computes for it; and its gradient then passes the segments before.
/// Neighbouring segments are on different devices, also if both devices have stages between them. So all m messages
/// from one to the next pass through a port of the latter, with p_i seconds of each, and the step is at least
///   before_i + (m - 1) p_i + the rest of the path without messages + after_i.
/// Dynamic programming over the path decides whether any segments keep within a step by both. The order of work on a
/// device does not matter.
class SegmentBound {
 public:
  /// Absent if nothing waits (see PipelineCosts::waits), no layer is left, or stages may have replicas. `costs` need
  /// not outlive it.
  [[nodiscard]] static std::optional<SegmentBound> of(const PipelineCosts& costs);

  /// Whether no split can take at most `time`, as far as this bound can tell. Absent if it was stopped.
  [[nodiscard]] std::optional<bool> refutes(Seconds time, const std::function<bool()>& stop) const;

 private:
  /// The place between two nodes of the path, or at an end of it.
  struct Cut {
    Seconds computed;  ///< of all microbatches, on the path before it
    Seconds way;       ///< of one microbatch there and back, without messages
    Seconds message;   ///< to the next node and back, if that is on another device
    Seconds port;      ///< of all messages but one
  };
  explicit SegmentBound(std::vector<Cut> cuts) : cuts_(std::move(cuts)) {}

  std::vector<Cut> cuts_;  ///< one more than nodes
};

}  // namespace stagecraft::partitioner
