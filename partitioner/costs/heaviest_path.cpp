#include "partitioner/costs/heaviest_path.h"

#include <algorithm>
#include <optional>

#include "costmodel/index.h"

namespace stagecraft::partitioner {

HeaviestPath heaviest_path(const std::vector<Seconds>& weights, const std::vector<std::vector<Arc>>& incoming) {
  const std::size_t nodes = weights.size();
  std::vector<Seconds> longest(nodes);
  std::vector<const Arc*> last(nodes, nullptr);
  for (std::size_t v = 0; v < nodes; ++v) {
    for (const Arc& arc : incoming[v]) {
      const Seconds through = longest[to_index(arc.from)] + arc.forward + arc.back;
      if (last[v] != nullptr && through <= longest[v]) continue;
      longest[v] = through;
      last[v] = &arc;
    }
    longest[v] += weights[v];
  }
  HeaviestPath out;
  int at = to_int(std::ranges::max_element(longest) - longest.begin());
  out.nodes.push_back(at);
  while (const Arc* arc = last[to_index(at)]) {
    out.arcs.push_back(arc->number);
    at = arc->from;
    out.nodes.push_back(at);
  }
  std::ranges::reverse(out.nodes);
  std::ranges::reverse(out.arcs);
  return out;
}

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

PathHop path_hop(const PipelineCosts& costs, int from, int to, std::size_t level) {
  const auto least = [level](const std::vector<Seconds>& by_level) {
    return *std::min_element(by_level.begin() + to_int(level), by_level.end());
  };
  PathHop out;
  for (const int number : costs.read_by(to)) {
    const CrossingValue& value = costs.values()[to_index(number)];
    if (value.producer != from) continue;
    out.forward = std::max(out.forward, least(value.forward));
    if (costs.returns()) out.back = std::max(out.back, least(value.back));
    out.port = std::max(out.port, least(value.ports));
  }
  return out;
}

}  // namespace stagecraft::partitioner
