#include "partitioner/objective/depth_first.h"

#include <algorithm>

#include "costmodel/index.h"

namespace stagecraft::partitioner {

std::vector<int> depth_first(const Dag& dag) {
  std::vector<std::vector<int>> next(to_index(dag.nodes));
  std::vector<int> waiting(to_index(dag.nodes), 0);
  for (const auto& [from, to] : dag.edges) {
    next[to_index(from)].push_back(to);
    ++waiting[to_index(to)];
  }
  std::vector<int> ready;
  for (int v = dag.nodes; v-- > 0;) {
    if (waiting[to_index(v)] == 0) ready.push_back(v);
  }
  std::vector<int> out;
  while (!ready.empty()) {
    const int node = ready.back();
    ready.pop_back();
    out.push_back(node);
    for (const int to : next[to_index(node)]) {
      if (--waiting[to_index(to)] == 0) ready.push_back(to);
    }
  }
  return out;
}

Dag list_of(const std::vector<int>& order) {
  Dag out{to_int(order.size()), {}};
  for (std::size_t i = 1; i < order.size(); ++i) out.edges.emplace_back(order[i - 1], order[i]);
  return out;
}

std::vector<std::vector<int>> depth_first_orders(const Dag& dag) {
  std::vector<int> from_the_end = depth_first(reversed(dag));
  std::ranges::reverse(from_the_end);
  return {depth_first(dag), from_the_end};
}

std::vector<Dag> depth_first_lists(const Dag& dag) {
  std::vector<Dag> out;
  for (const std::vector<int>& order : depth_first_orders(dag)) out.push_back(list_of(order));
  return out;
}

}  // namespace stagecraft::partitioner
