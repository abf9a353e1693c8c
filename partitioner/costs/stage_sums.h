#pragma once

#include <cstdint>
#include <vector>

#include "costmodel/schedule.h"
#include "costmodel/units.h"

namespace stagecraft::partitioner {

/// What a stage holds at least, by its layers alone. It grows with every layer.
struct StageBytes {
  Bytes state;           ///< parameters, frozen ones, buffers and optimizer state: all the time
  Bytes gradients;       ///< from the end of the first backward on, or all the time
  Bytes per_microbatch;  ///< of each microbatch in flight
  Bytes once;            ///< while any microbatch is in flight: what is run again, of all layers together
  Bytes segment;         ///< likewise, of the layer that needs the most; for recomputation by segments

  StageBytes& operator+=(const StageBytes& layer);
  friend bool operator==(const StageBytes&, const StageBytes&) = default;
};

/// The peak of a stage that holds up to `in_flight` microbatches at once, and `workspace` bytes beside them in the
/// forward of the last of these. `with_gradients`: gradients exist while there are as many; else the first backward
/// that ends makes them, and releases a microbatch. Activations and workspace count `factor` times: of those of the
/// moment with the most bytes. Precondition: in_flight >= 1, factor >= 1.
[[nodiscard]] Bytes peak_bytes(const StageBytes& stage, std::int64_t in_flight, bool with_gradients, Bytes workspace,
                               double factor = 1);

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
