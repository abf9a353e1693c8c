#include "costmodel/split.h"

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft {
namespace {

/// Known names for a message about a wrong one: all if few, else the first ones and how many more.
std::vector<std::string> told(const std::vector<std::string>& layers) {
  constexpr std::size_t kMost = 60;
  std::vector<std::string> out(layers.begin(), layers.begin() + static_cast<long>(std::min(layers.size(), kMost)));
  if (layers.size() > kMost) out.push_back("and " + std::to_string(layers.size() - kMost) + " more");
  return out;
}

}  // namespace

std::vector<int> layer_list(const Graph& graph) {
  std::vector<int> layers;
  for (const int index : topological_order(graph)) {
    if (!is_input(graph.layers[to_index(index)])) layers.push_back(index);
  }
  return layers;
}

std::vector<std::string> layer_ids(const Graph& graph) {
  std::vector<std::string> out;
  for (const int index : layer_list(graph)) out.push_back(graph.layers[to_index(index)].id);
  return out;
}

std::vector<int> bounds_at(const std::vector<std::string>& layers, const std::vector<std::string>& names) {
  std::vector<int> bounds{0};
  for (std::size_t n = 0; n < names.size(); ++n) {
    const std::string& name = names[n];
    auto it = std::find(layers.begin(), layers.end(), name);
    if (it == layers.end()) {
      it =
          std::find_if(layers.begin(), layers.end(), [&](const std::string& id) { return id.starts_with(name + "."); });
    }
    if (it == layers.end() || name.empty())
      throw InputError(ErrorKind::UnknownName, unknown_name("layer", name, told(layers)));
    const int at = to_int(it - layers.begin());
    if (at == 0) {
      throw std::invalid_argument("\"" + name + "\" begins the first stage; give the first layers of " +
                                  "the later stages");
    }
    if (at <= bounds.back()) {
      throw std::invalid_argument("\"" + name + "\" does not come after \"" + names[n - 1] +
                                  "\" in the list of layers; give them in order");
    }
    bounds.push_back(at);
  }
  bounds.push_back(to_int(layers.size()));
  return bounds;
}

Partition partition_of_bounds(const Graph& graph, const std::vector<int>& bounds) {
  const std::vector<int> layers = layer_list(graph);
  const int count = to_int(layers.size());
  if (bounds.size() < 2 || bounds.front() != 0 || bounds.back() != count) {
    throw std::invalid_argument("bounds must increase from 0 to " + std::to_string(count) + ", the number of layers");
  }
  const auto level = std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>());
  if (level != bounds.end()) {
    throw std::invalid_argument("bound " + std::to_string(level[1]) + " follows " + std::to_string(level[0]) +
                                ", a stage has at least one layer");
  }
  Partition out;
  out.stage_of_layer.assign(graph.layers.size(), -1);
  out.replicas.assign(bounds.size() - 1, 1);
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s) {
    for (int i = bounds[s]; i < bounds[s + 1]; ++i) { out.stage_of_layer[to_index(layers[to_index(i)])] = to_int(s); }
  }
  return out;
}

}  // namespace stagecraft
