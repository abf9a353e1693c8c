#pragma once

#include <vector>

#include "costmodel/schedule.h"
#include "costmodel/units.h"
#include "partitioner/exact/stage_bytes.h"

namespace stagecraft::partitioner {

// The stages of a split and the messages between them, as PipelineCosts::lower_bound adds them up.

/// Sums over the nodes of a stage.
struct StageSums {
  Seconds forward, backward, weights, update, least;
  Bytes untied;
  Bytes parameters;
  Bytes tied;  ///< of `parameters`, what other stages hold too
  StageBytes bytes;
  Bytes workspace;         ///< see NodeCosts, of the last node
  std::vector<int> nodes;  ///< ascending
};

/// The message of a microbatch from one stage to a later one, and the gradients that come back.
struct StageLink {
  int from = 0;
  int to = 0;
  bool gradient = false;
  std::vector<Seconds> forward, back;  ///< by level of the topology
  Seconds port, port_back;             ///< see CrossingValue
};

/// Messages that go one way through one port of a device: out or in, of activations or gradients.
struct PortUse {
  Seconds first{1e100};  ///< when the first of them can begin
  Seconds sum;
};

/// The uses of one device.
struct PortUses {
  PortUse activations_out, activations_in, gradients_out, gradients_in;
};

/// A bound of the step by the messages of the busiest port of a device: what passes through a port does so one after
/// the other, or shares it; then the last of it has a way to go. For one stage per device and one level of links.
[[nodiscard]] Seconds busiest_port(const ScheduleEntry& schedule, const std::vector<StageSums>& sums,
                                   const std::vector<StageLink>& links, const std::vector<int>& stage_of_rank,
                                   const std::vector<PortUses>& ports);

}  // namespace stagecraft::partitioner
