#include "executor/intake/operator_graph.h"

namespace stagecraft {

std::string place_of(const OperatorGraph& graph, const GraphNode& node) {
  std::string out = graph.file + ": node \"" + node.name + "\" (" + node.target + ")";
  if (!node.modules.empty() && !node.modules.back().path.empty())
    out += " in module \"" + node.modules.back().path + "\"";
  return out;
}

std::set<int> written_values(const OperatorGraph& graph, const std::vector<int>& nodes) {
  std::set<int> out;
  for (const int n : nodes) {
    const std::vector<int>& writes = graph.nodes[static_cast<std::size_t>(n)].writes;
    out.insert(writes.begin(), writes.end());
  }
  for (auto n = nodes.rbegin(); n != nodes.rend(); ++n) {
    for (const auto& [result, read] : graph.nodes[static_cast<std::size_t>(*n)].aliases) {
      if (out.contains(result)) out.insert(read);
    }
  }
  return out;
}

}  // namespace stagecraft
