#include "partitioner/exact/heaviest_path.h"

#include <algorithm>

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

}  // namespace stagecraft::partitioner
