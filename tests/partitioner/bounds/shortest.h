#pragma once

#include <optional>
#include <stdexcept>

#include "partitioner/candidate.h"
#include "partitioner/cost_model.h"
#include "partitioner/strategy.h"
#include "tests/support/every_partition.h"

namespace stagecraft::partitioner {

/// Calls `visit` with `some` of all partitions with any replicas that fit in memory and can run, and their predicted
/// plans.
template <class Some, class Visit>
void each_predicted(const Graph& graph, const Topology& topology, const Constraints& constraints, int devices,
                    Some some, Visit visit) {
  const CostModel model = simulated_costs();
  testing::each_partition(graph, devices, [&](const Partition& partition) {
    Candidate candidate;
    candidate.partition = partition;
    for (const int replicas : partition.replicas) {
      if (replicas > constraints.plan.microbatches) return;
    }
    if (!some()) return;
    try {
      const RankedPlan ranked = predicted_plan("any", graph, topology, candidate, model, constraints);
      if (ranked.fits) visit(partition, ranked);
    } catch (const std::invalid_argument&) {
    } catch (const std::runtime_error&) {}
  });
}

}  // namespace stagecraft::partitioner
