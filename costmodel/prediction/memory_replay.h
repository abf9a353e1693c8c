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

/// The bound of a stage's share `memory` of a peak, from the possible error of each part:
///   2 % of the total, four times the excess of runs on processors, messages apart;
///   `messages`, the bytes of one message over each boundary of the stage, twice: tensors in another layout are copied
///     before they leave and after they have arrived, and a message may still be in flight;
///   half of the kept gradients, which depend on the operators inside a layer;
///   39 % of activations and workspace where `measured` is false: some layer has no measured bytes;
///   on a GPU 15 % of the total, for the allocator's cache.
/// A rank on a GPU needs kGpuBase in addition. Fitted by bench/accuracy/fit_memory.
[[nodiscard]] Bytes memory_bound(const RankMemory& memory, Bytes messages, bool measured, DeviceKind device);

/// The shares by which memory_bound exceeds what is counted, and what it adds.
struct MemoryMargins {
  double total = 0;           ///< of the total
  double activations = 0;     ///< of activations and workspace, besides
  double kept_gradients = 0;  ///< of these, besides
  Bytes base;                 ///< of a rank
};
[[nodiscard]] MemoryMargins memory_margins(bool measured, DeviceKind device);

/// The most that a process needs on a GPU besides tensors: context, libraries, communicators.
inline constexpr Bytes kGpuBase{std::int64_t{4800} << 20};

/// Bytes that a split backward keeps of one microbatch of `layer` until its weight gradient: the gradients of the
/// results of its operators. 0 without parameters; else the outputs, or 11/24 of the saved bytes if that is more: in a
/// transformer block, the results of matrix products and norms are 11 times its width, out of 24 times that are saved.
[[nodiscard]] Bytes kept_gradient_bytes(const Layer& layer);

/// Bytes of the buffers with which `ranks` ranks sum `values` bytes over `channel`, kept from the first step on:
/// ChannelTraits::reduce_buffers; 0 for one rank, no values, and a channel that is not in that table.
[[nodiscard]] Bytes reduce_buffer_bytes(Bytes values, int ranks, const std::string& channel);

}  // namespace stagecraft
