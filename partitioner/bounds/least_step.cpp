#include "partitioner/bounds/least_step.h"

#include <algorithm>
#include <vector>

#include "costmodel/index.h"
#include "partitioner/costs/heaviest_path.h"

namespace stagecraft::partitioner {
namespace {

/// A bound of all plans: the way of one microbatch along the path with the most computation, and back.
Seconds least_way(const PipelineCosts& costs) {
  if (!costs.waits()) return Seconds(0);
  std::vector<Seconds> weights;
  std::vector<std::vector<Arc>> incoming(to_index(costs.dag().nodes));
  for (int node = 0; node < costs.dag().nodes; ++node) {
    weights.push_back(costs.node(node).forward + costs.node(node).least_return);
    for (const int number : costs.read_by(node)) {
      const CrossingValue& value = costs.values()[to_index(number)];
      if (value.gradient || !costs.schedule().trains)
        incoming[to_index(node)].push_back({value.producer, number, {}, {}});
    }
  }
  Seconds out;
  for (const int node : heaviest_path(weights, incoming).nodes) out += weights[to_index(node)];
  return out;
}

}  // namespace

Seconds least_computation(const PipelineCosts& costs) {
  Seconds sum;
  Seconds largest;
  Seconds loading;
  for (int node = 0; node < costs.dag().nodes; ++node) {
    sum += costs.node(node).least;
    largest = std::max(largest, costs.node(node).least);
    loading = std::max(loading, costs.node(node).loading);
  }
  const Seconds spread = sum * (static_cast<double>(costs.microbatches()) / costs.devices());
  const int replicas = costs.devices();
  const Seconds busiest = std::max(largest * costs.share(replicas), costs.least_loading(loading, replicas));
  return std::max({spread, busiest, least_way(costs)}) * (1 - kEqual);
}

Seconds least_step(const Graph& graph, const Topology& topology, const PlanSettings& settings) {
  return least_computation(PipelineCosts(graph, topology, settings));
}

}  // namespace stagecraft::partitioner
