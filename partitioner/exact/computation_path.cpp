#include "partitioner/exact/computation_path.h"

#include <optional>

#include "costmodel/index.h"
#include "partitioner/exact/heaviest_path.h"

namespace stagecraft::partitioner {

std::vector<int> computation_path(const PipelineCosts& costs) {
  const int nodes = costs.dag().nodes;
  std::vector<Seconds> weights;
  std::vector<std::vector<Arc>> incoming(to_index(nodes));
  for (int v = 0; v < nodes; ++v) {
    weights.push_back(costs.node(v).forward + costs.node(v).least_return);
    for (const int number : costs.read_by(v)) {
      const CrossingValue& value = costs.values()[to_index(number)];
      if (!costs.returns() || value.gradient)
        incoming[to_index(v)].push_back({value.producer, number, value.least_forward, value.least_back});
    }
  }
  return heaviest_path(weights, incoming).nodes;
}

PathHop path_hop(const PipelineCosts& costs, int from, int to) {
  std::optional<PathHop> out;
  for (const int number : costs.read_by(to)) {
    const CrossingValue& value = costs.values()[to_index(number)];
    if (value.producer != from || (costs.returns() && !value.gradient)) continue;
    if (out && out->forward + out->back >= value.least_forward + value.least_back) continue;
    out = PathHop{value.least_forward, costs.returns() ? value.least_back : Seconds(0), value.port};
  }
  return out.value_or(PathHop{});
}

}  // namespace stagecraft::partitioner
