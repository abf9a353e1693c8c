#pragma once

#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"
#include "partitioner/costs/pipeline_costs.h"

namespace stagecraft::partitioner {

/// A lower bound of the predicted step of all plans, whatever the order of layers, known at once: the computation of
/// the busiest device, if all computation could be divided evenly, or the way of one microbatch through the layers and
/// back.
[[nodiscard]] Seconds least_computation(const PipelineCosts& costs);

/// least_computation of the plans with these settings.
[[nodiscard]] Seconds least_step(const Graph& graph, const Topology& topology, const PlanSettings& settings);

}  // namespace stagecraft::partitioner
