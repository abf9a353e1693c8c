#pragma once

#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/timeline.h"

namespace stagecraft {

/// Microbatches whose activations a rank holds at most at once for `stage`, from its own action list: forwards begun
/// less backwards (weight gradients, for those that have one) done. A forward without a backward is done at its end.
[[nodiscard]] int in_flight(const std::vector<Action>& list, int stage);

/// For each stage the bytes of the tied parameters that it shares with other stages, 0 for most. Precondition: the plan
/// is valid for the graph.
[[nodiscard]] std::vector<Bytes> tied_bytes(const Graph& graph, const BoundPlan& plan);

/// Peak bytes of a rank of `stage` that holds `in_flight` microbatches at once, by part:
///   parameters, gradients (as many bytes), optimizer (optimizer_state_values for each parameter value),
///   activations (in_flight * (saved bytes of its layers + what it receives); layers without saved_bytes count their
///     outputs; with recomputation in_flight * (what it receives + what crosses between its segments), and the saved
///     bytes of the largest segment once; where the schedule parts the backward, of all segments in_flight times, since
///     what was run again stays until the weights' part),
///   inputs (in_flight * the loaded data it reads), receiving (one message ahead on each incoming edge),
///   workspace (the largest of any layer; layers that do not say count their largest output once),
///   reduction (a copy of the gradients while replicas sum them),
///   older versions (of the parameters, which an asynchronous schedule keeps beside the newest).
/// Where nothing is trained there are no gradients, optimizer and reduction, and activations are what it receives and
/// the largest output of a layer.
/// The parts add up to the total. Precondition: the plan is valid for the graph.
[[nodiscard]] RankMemory stage_memory(const Graph& graph, const BoundPlan& plan, int stage, int in_flight);

}  // namespace stagecraft
