#include "executor/intake/graph/layers/node_needs.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

using Origin = GraphValue::Origin;

MemorySets sets_of(const OperatorGraph& graph) {
  MemorySets out(graph.values.size());
  for (const GraphNode& node : graph.nodes) out.join(node.aliases);
  return out;
}

}  // namespace

GraphMemory::GraphMemory(const OperatorGraph& graph) : sets_(sets_of(graph)) {
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const Origin origin = graph.values[v].origin;
    const int memory = of(to_int(v));
    if (origin == Origin::Buffer || origin == Origin::Constant) state_.insert(memory);
    if (origin == Origin::Parameter) trained_.insert(memory);
    if (origin == Origin::Input) inputs_.insert(memory);
  }
}

bool GraphMemory::writes_state(const GraphNode& node) {
  return std::ranges::any_of(node.writes, [&](int v) { return is_state(of(v)); });
}

std::vector<bool> needed_nodes(const OperatorGraph& graph, int root, GraphMemory& memory) {
  std::vector<bool> needed(graph.nodes.size());
  std::set<int> wanted{memory.of(root)};
  for (int n = to_int(graph.nodes.size()) - 1; n >= 0; --n) {
    const auto is_wanted = [&](int v) { return wanted.contains(memory.of(v)); };
    const GraphNode& node = graph.nodes[to_index(n)];
    for (const int v : node.writes) {
      const auto& value = graph.values[to_index(v)];
      if (value.kind == GraphValue::Kind::Tensor && memory.is_trained(v)) {
        const auto parameter = std::ranges::find_if(graph.values, [&](const GraphValue& each) {
          return each.origin == Origin::Parameter && memory.of(to_int(&each - graph.values.data())) == memory.of(v);
        });
        throw std::invalid_argument(place_of(graph, node) + " changes the trained parameter \"" + parameter->name +
                                    "\" in its forward, which only the optimizer may; use a buffer");
      }
    }
    needed[to_index(n)] = std::ranges::any_of(node.gives, is_wanted) || std::ranges::any_of(node.writes, is_wanted) ||
                          memory.writes_state(node) || node.random;
    if (!needed[to_index(n)]) continue;
    for (const int v : node.reads) wanted.insert(memory.of(v));
  }
  return needed;
}

std::vector<bool> repeatable_nodes(const OperatorGraph& graph, const std::vector<bool>& needed, GraphMemory& memory) {
  const int count = to_int(graph.nodes.size());
  std::vector<bool> repeatable(graph.nodes.size());
  std::set<int> spoiled;  // memory
  for (bool changed = true; changed;) {
    changed = false;
    std::vector<bool> follows(graph.values.size());
    for (std::size_t v = 0; v < graph.values.size(); ++v) {
      const GraphValue& value = graph.values[v];
      follows[v] =
          value.kind == GraphValue::Kind::Number ||
          ((value.origin == Origin::Input || value.origin == Origin::Constant || value.origin == Origin::Buffer) &&
           !spoiled.contains(memory.of(to_int(v))));
    }
    for (int n = 0; n < count; ++n) {
      const GraphNode& node = graph.nodes[to_index(n)];
      bool fits = node.repeatable && !node.number && !node.random && !memory.writes_state(node) &&
                  std::ranges::all_of(node.reads, [&](int v) { return follows[to_index(v)]; });
      for (const int v : node.gives) fits = fits && !spoiled.contains(memory.of(v));
      for (const int v : node.writes)
        fits = fits && graph.values[to_index(v)].origin == Origin::Node && !memory.reaches_input(v);
      repeatable[to_index(n)] = fits && needed[to_index(n)];
      for (const int v : node.gives) {
        if (graph.values[to_index(v)].kind != GraphValue::Kind::Number) follows[to_index(v)] = fits;
      }
      if (fits) continue;
      for (const int v : node.writes) changed = spoiled.insert(memory.of(v)).second || changed;
    }
    // A layer that reads memory before its last write would find the later contents.
    std::map<int, int> last_write;
    for (int n = 0; n < count; ++n) {
      if (!repeatable[to_index(n)]) continue;
      for (const int v : graph.nodes[to_index(n)].writes) last_write[memory.of(v)] = n;
    }
    for (int n = 0; n < count; ++n) {
      if (repeatable[to_index(n)] || !needed[to_index(n)] || graph.nodes[to_index(n)].number) continue;
      for (const int v : graph.nodes[to_index(n)].reads) {
        const auto it = last_write.find(memory.of(v));
        if (it != last_write.end() && n < it->second) changed = spoiled.insert(it->first).second || changed;
      }
    }
  }
  return repeatable;
}

}  // namespace stagecraft::intake
