#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/graph.h"
#include "costmodel/schedule.h"
#include "costmodel/simulation/simulation_input.h"
#include "costmodel/topology.h"

namespace stagecraft {

/// The parts of a layer's backward: Layer::backward_parts, or an estimate for a layer without them. Then the backward
/// of a layer with trainable parameters is half gradient of the inputs and half gradient of the weights, and any other
/// is all gradient of the inputs. Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, table 1: the matrix
/// product of a linear layer takes as many operations for its inputs as for its weights. Layers that do little work
/// with their weights (norms, biases) spend less than half on them.
[[nodiscard]] BackwardParts backward_parts(const Layer& layer);

/// One microbatch's backward of a stage, with the graph's own times.
struct SplitBackwardTimes {
  Seconds inputs;   ///< Backward
  Seconds weights;  ///< WeightGradient
  friend bool operator==(const SplitBackwardTimes&, const SplitBackwardTimes&) = default;
};

/// For each stage, its backward where the schedule splits it, as the executor does. Backward covers the layers through
/// which gradients flow to the stage's inputs, without their weight gradients; WeightGradient covers the weight
/// gradients of those layers and the whole backward of every other layer. If a stage sends no gradient back, or
/// contains a layer that is not separable, its whole backward is in the first part. If a stage recomputes in segments,
/// this applies to each segment. Recomputation itself is not included. Precondition: the plan is valid for the graph.
[[nodiscard]] std::vector<SplitBackwardTimes> split_backward_times(const Graph& graph, const BoundPlan& plan);

/// For each stage, whether its backward leaves work to the second part according to split_backward_times; false for all
/// if the schedule does not split.
[[nodiscard]] std::vector<bool> splits_backward(const Graph& graph, const BoundPlan& plan);

/// A sentence that says for how many layers predictions of `plan` rest on the estimate of backward_parts; empty if
/// the schedule does not split the backward, or all parts were measured. Precondition: the plan is valid for the graph.
[[nodiscard]] std::string backward_parts_assumption(const Graph& graph, const BoundPlan& plan);

/// The factor by which layer times are scaled so that forward, backward and update of all layers add up to the graph's
/// whole iteration; 1 if it has none.
[[nodiscard]] double closure_factor(const Graph& graph);
/// The same of the layers' times on one type of devices, such as those of a DeviceProfile.
[[nodiscard]] double closure_factor(const std::vector<Layer>& layers, const std::optional<Timing>& iteration);

/// Layer::accumulation, 0 if it was not measured, at most the backward and the part of it that computes weight
/// gradients.
[[nodiscard]] Seconds accumulation_time(const Layer& layer);

/// The share of a stage's backwards that create its gradients instead of adding to them: of the `microbatches` of a
/// step, the first of each update. 0 where replicas of a synchronous schedule keep gradients in one buffer.
[[nodiscard]] double creating_share(const ScheduleEntry& schedule, int microbatches, int replicas);

/// The factor by which the forwards and backwards of a rank take longer because it holds up to `held_bytes` of
/// activations, of a model that saves `all` for a microbatch. Linear in `held_bytes`, from one microbatch of the whole
/// model up to the number at which Graph::in_flight_slowdown was measured; 1 without that.
[[nodiscard]] double in_flight_factor(const Graph& graph, double held_bytes, Bytes all);

/// What each stage's actions cost, from its layers' times multiplied by closure_factor:
///   forward: with the forward of the inputs that the stage reads (on a CPU their loading, on a GPU their upload), and
///     what their loading beside a GPU exceeds the rank's work on a microbatch by; inputs of imported profiles, which
///     have no count, do not matter;
///   backward: with the forward again where the stage recomputes; in the parts of split_backward_times if the schedule
///     splits it; less the accumulation of those that create gradients, as a mean over all (creating_share); like the
///     forward multiplied by in_flight_factor, unless the stage recomputes;
///   update: of a schedule that updates after every gradient, without the division by their number, and with a copy of
///     the parameters where older versions are in use; with Plan::sharding, the part of the rank that updates the most,
///     and the all-gathers of the parameters;
///   gather: with StateSharding::Parameters, the all-gathers of those that the stage does not share, before it computes
///     instead of in the update;
///   reduce or buckets: the sum over the replicas of all parameters but those shared with other stages;
///   tied: the sums of the parameters in BoundPlan::shared, each over its holders, one after the other.
/// Sums with GradientSum::parts are reduce-scatters.
/// A stage is timed on the type of its devices; where its replicas are of several types, on the slowest of them.
/// Precondition: the plan is valid for graph and topology.
[[nodiscard]] std::vector<StageCost> stage_costs(const Graph& graph, const Topology& topology, const BoundPlan& plan);

/// Which stages wait for data that the host loads more slowly than the device computes, and both times; empty if none
/// does, or with several types of devices. Precondition as for stage_costs.
[[nodiscard]] std::string data_wait_text(const Graph& graph, const Topology& topology, const BoundPlan& plan);

}  // namespace stagecraft
