#pragma once

#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/graph.h"
#include "costmodel/timeline.h"
#include "costmodel/topology.h"

namespace stagecraft {

/// What memory depends on, apart from graph and plan.
struct MemoryPlace {
  std::string channel;  ///< as Link::channel
  DeviceKind device = DeviceKind::Unknown;
};

/// From a topology: the channel of its innermost links and the kind of its device.
[[nodiscard]] MemoryPlace memory_place(const Topology& topology);

/// The memory of a rank while it replays its action list.
struct MemoryReplay {
  RankMemory peak;                 ///< the parts add up to the total
  Bytes bound;                     ///< that no run exceeds, see memory_bound
  std::vector<RankMemory> stages;  ///< the shares of RankRole::stages in the peak, in that order; they add up to it
  std::vector<Bytes> bounds;       ///< likewise of the bound
  std::vector<Bytes> after;        ///< the bytes after each action
  std::vector<Bytes> during;       ///< the most while each action of the list runs
};

/// Replays the action list of each rank and counts what it holds at each action. Parts as in StageMemories, except:
///   activations, inputs: of the microbatches held at that moment;
///   optimizer: of what the rank updates, see updated_bytes;
///   gradients: from the end of the first backward on, with replicas always; under an asynchronous schedule between a
///     backward and the update. During the backward that creates them, the amount by which they exceed the activations
///     that it releases meanwhile;
///   workspace: of the layer that needs the most together with the activations of the layers before it;
///   kept gradients: between the two parts of a split backward, see kept_gradient_bytes;
///   receiving: messages from the post of the receive to their use; sending: gradients from their backward on, and sent
///     messages until there are 32 of them or 256 KiB, when a rank checks which are complete;
///   older versions: those that microbatches in flight and the last backward use, and during an update the copy that it
///     makes, unless it works in place;
///   reduction: under an asynchronous schedule, a copy of the gradients while replicas sum them;
///   communication: the buffers of all-reduces, see reduce_buffer_bytes;
///   libraries: Graph::library_bytes, once per rank.
/// `lists` cover one step, or several of an asynchronous schedule. A synchronous step
/// begins without gradients.
[[nodiscard]] std::vector<MemoryReplay> replay_memory(const Graph& graph, const BoundPlan& plan,
                                                      const std::vector<std::vector<Action>>& lists,
                                                      const MemoryPlace& place = {});

/// The same for a topology, each rank with the costs of its device type.
[[nodiscard]] std::vector<MemoryReplay> replay_memory(const Graph& graph, const Topology& topology,
                                                      const BoundPlan& plan,
                                                      const std::vector<std::vector<Action>>& lists);

}  // namespace stagecraft
