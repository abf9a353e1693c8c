#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/gradient_sums.h"
#include "costmodel/graph.h"
#include "costmodel/timeline.h"
#include "costmodel/topology.h"

namespace stagecraft {

/// Largest number of microbatches whose activations a rank holds at once for `stage`, from its action list: forwards
/// begun minus backwards (weight gradients, for those that have one, unless `splits` is false) done. A forward without
/// a backward is done at its end. `splits`: of splits_backward. `later`: only from the first moment on at which one is
/// done, and gradients exist.
[[nodiscard]] int in_flight(const std::vector<Action>& list, int stage, bool splits = true, bool later = false);

/// By layer: the bytes of its parameters that no earlier one of `layers` holds. With the layers of a stage: what the
/// stage holds and updates, since a tied parameter is one tensor there.
[[nodiscard]] std::vector<Bytes> first_held_bytes(const std::vector<const Layer*>& layers);
/// The sum of first_held_bytes over these layers, or over all layers of a graph.
[[nodiscard]] Bytes held_parameter_bytes(const std::vector<const Layer*>& layers);
[[nodiscard]] Bytes held_parameter_bytes(const Graph& graph);
/// The share of the layer's update that is left where its stage holds only `held` of its parameters for it.
[[nodiscard]] double share_updated(const Layer& layer, Bytes held);

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

/// Bytes of a message over each boundary: of the activation, and of the gradient.
[[nodiscard]] std::vector<std::vector<Bytes>> message_bytes(const Plan& plan);

/// Bytes of the buffers for a stage's `sums` of gradients.
[[nodiscard]] Bytes communication_of(const BoundPlan& plan, const std::vector<GradientSum>& sums,
                                     const std::string& channel);

/// The bytes that the ranks of each stage hold. The constructor searches the graph once.
class StageMemories {
 public:
  /// Both must outlive this object. Precondition: the plan is valid for the graph.
  StageMemories(const Graph& graph, const BoundPlan& plan);
  /// Bytes of a rank of `stage` that holds `in_flight` microbatches at once, with all parts at their largest, by part:
  ///   parameters, frozen (frozen parameters and buffers),
  ///   gradients (see gradient_bytes), optimizer (optimizer_bytes of what the rank updates, see updated_bytes: of the
  ///     stage's ranks, the one that updates the most),
  ///   activations (in_flight * (saved bytes of its layers + what it receives, twice if no layer saves it: a layer's
  ///     saved bytes are less by what it released while the model was whole, and a stage keeps what it receives);
  ///     layers without saved_bytes count their outputs; with recomputation in_flight * (what it receives + what
  ///     crosses between its segments + the buffers that its forwards write), and the saved bytes of the largest
  ///     segment once; if the schedule splits the backward, of all segments in_flight times, since recomputed values
  ///     stay until the weight gradient),
  ///   inputs (in_flight * the loaded data it reads), receiving (one message ahead on each incoming edge,
  ///     and the gradients in use), sending (the gradients on their way back),
  ///   workspace (the largest of any layer; layers without workspace_bytes count their largest output once),
  ///   libraries (Graph::library_bytes),
  ///   reduction (under an asynchronous schedule, a copy of the gradients while replicas sum them),
  ///   older versions (of the parameters, which an asynchronous schedule keeps besides the newest).
  /// Without training there are no gradients, optimizer state or reduction; activations are the received tensors and
  /// the largest output of a layer. The parts add up to the total.
  [[nodiscard]] RankMemory operator()(int stage, int in_flight) const;

 private:
  /// Bytes of a stage that recomputes, for one microbatch.
  struct Recomputed {
    Bytes kept;     ///< values that one segment produces and a later one reads
    Bytes largest;  ///< saved bytes of the segment with the most
  };
  /// What belongs to a stage, as indices in the graph.
  struct Members {
    std::vector<int> layers;
    std::vector<int> edges;  ///< into its layers
  };

  [[nodiscard]] Recomputed recomputed(int stage) const;
  [[nodiscard]] Bytes loaded(int stage) const;

  const Graph& graph_;
  const BoundPlan& plan_;
  LayersById layers_;
  std::vector<Members> members_;  // by stage
  GradientSums sums_;             // where replicas divide the optimizer's state
};

}  // namespace stagecraft
