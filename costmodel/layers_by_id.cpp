#include "costmodel/layers_by_id.h"

#include "costmodel/index.h"

namespace stagecraft {

LayersById::LayersById(const Graph& graph) : graph_(graph) {
  for (int i = 0; i < to_int(graph.layers.size()); ++i) by_id_.emplace(graph.layers[to_index(i)].id, i);
}

int LayersById::index(const std::string& id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? layer_index(graph_, id) : found->second;
}

}  // namespace stagecraft
