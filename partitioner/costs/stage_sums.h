#pragma once

#include <cstdint>
#include <vector>

#include "costmodel/schedule.h"
#include "costmodel/units.h"

namespace stagecraft::partitioner {

/// The least that a stage holds, by its layers alone: a sum that grows with every layer.
struct StageBytes {
  Bytes state;                  ///< parameters, frozen ones, buffers and optimizer state: all the time
  Bytes gradients;              ///< from the end of the first backward on, or all the time
  Bytes per_microbatch;         ///< of each microbatch in flight
  Bytes once;                   ///< while any microbatch is in flight: what all layers together recompute
  Bytes segment;                ///< the same for recomputation by segments: the layer that needs the most
  Bytes loaded = {};            ///< of the inputs that it reads, of each microbatch in flight
  Bytes divided = {};           ///< the optimizer state that replicas divide among them, if they do: not in `state`
  std::int64_t unmeasured = 0;  ///< layers whose bytes were not measured: memory_bound adds more for them

  StageBytes& operator+=(const StageBytes& layer);
  friend bool operator==(const StageBytes&, const StageBytes&) = default;
};

/// A lower bound of the workspace beside what a stage saves, in the forward of one microbatch: the most that a layer
/// needs beyond what the layers after it in the stage save. Layers come in any order.
struct StageWorkspace {
  Bytes most;
  Bytes saved;    ///< of all layers
  int last = -1;  ///< the layer that comes last in the stage

  void add(int node, Bytes workspace, Bytes node_saved);
};

/// The peak of a stage that holds up to `in_flight` microbatches at once, with `workspace` bytes beside them in the
/// forward of the last one. `with_gradients`: gradients exist while the stage holds `in_flight` microbatches;
/// otherwise, the first backward that ends creates the gradients and releases a microbatch. Activations and workspace,
/// but not inputs, count `factor` times at the moment with the most bytes. Precondition: in_flight >= 1, factor >= 1.
[[nodiscard]] Bytes peak_bytes(const StageBytes& stage, std::int64_t in_flight, bool with_gradients, Bytes workspace,
                               double factor = 1);

// The stages of a split and the messages between them, as PipelineCosts::lower_bound adds them up.

/// Sums over the nodes of a stage.
struct StageSums {
  Seconds forward, backward, weights, update, least;
  std::optional<Seconds> whole_backward;  ///< of backwards that no weight gradient follows, if others are split
  Seconds loading;                        ///< see NodeCosts, of the layer with the most
  Bytes untied;                           ///< see NodeCosts
  Bytes gradients;
  Bytes tied;  ///< the part of `gradients` that other stages have too
  StageBytes bytes;
  Bytes workspace;         ///< see NodeCosts, of the last node
  std::vector<int> nodes;  ///< ascending
};

/// The message of a microbatch from one stage to a later one, and its gradient.
struct StageLink {
  int from = 0;
  int to = 0;
  bool gradient = false;
  std::vector<Seconds> forward, back;  ///< by level of the topology
  Seconds port, port_back;             ///< see CrossingValue
};

/// The messages of one kind, activations or gradients, through one port of a device, out or in.
struct PortUse {
  Seconds first{1e100};  ///< when the first message can begin
  Seconds sum;           ///< of the times of all messages
};

/// The uses of one device.
struct PortUses {
  PortUse activations_out, activations_in, gradients_out, gradients_in;
};

/// A bound of the step by the messages of the busiest port of a device: messages pass through a port one after the
/// other or share it, and the last message then has a way to go. For one stage per device and one level of links.
[[nodiscard]] Seconds busiest_port(const ScheduleEntry& schedule, const std::vector<StageSums>& sums,
                                   const std::vector<StageLink>& links, const std::vector<int>& stage_of_rank,
                                   const std::vector<PortUses>& ports);

}  // namespace stagecraft::partitioner
