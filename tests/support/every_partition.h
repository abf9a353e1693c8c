#pragma once

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"

namespace stagecraft::testing {

/// Calls `visit` with every partition of `graph` into stages with replicas on at most `devices` devices. The layers
/// must be in topological order.
template <class Visit>
void each_partition(const Graph& graph, int devices, Visit visit) {
  Partition partition;
  partition.stage_of_layer.assign(graph.layers.size(), -1);
  const auto with_replicas = [&](const auto& self, int stages, int left) -> void {
    if (static_cast<int>(partition.replicas.size()) == stages) return visit(partition);
    const int later = stages - static_cast<int>(partition.replicas.size()) - 1;
    for (int r = 1; r <= left - later; ++r) {
      partition.replicas.push_back(r);
      self(self, stages, left - r);
      partition.replicas.pop_back();
    }
  };
  const auto from_layer = [&](const auto& self, std::size_t layer, int stages) -> void {
    if (layer == graph.layers.size()) {
      const std::set<int> used(partition.stage_of_layer.begin(), partition.stage_of_layer.end());
      for (int stage = 0; stage < stages; ++stage) {
        if (!used.contains(stage)) return;
      }
      return with_replicas(with_replicas, stages, devices);
    }
    if (is_input(graph.layers[layer])) return self(self, layer + 1, stages);
    int least = 0;
    for (const Edge& edge : graph.edges) {
      if (edge.destination == static_cast<int>(layer))
        least = std::max(least, partition.stage_of_layer[static_cast<std::size_t>(edge.source)]);
    }
    for (int stage = least; stage < stages; ++stage) {
      partition.stage_of_layer[layer] = stage;
      self(self, layer + 1, stages);
    }
  };
  for (int stages = 1; stages <= devices; ++stages) from_layer(from_layer, 0, stages);
}

/// A graph of `layers` layers after an input, in topological order, in which each reads one or more earlier ones; with
/// updates, loading times, two outputs of which one has no gradient, parameters that two layers share, and types of
/// what training keeps, by chance.
inline Graph branching_graph(std::mt19937& random, int layers) {
  const auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
  Graph graph;
  graph.name = "branching";
  graph.optimizer_state_values = up_to(2);
  const bool measured = graph.optimizer_state_values == 2;  // what a profile measures besides times by layer
  if (measured) graph.in_flight_slowdown = InFlightSlowdown{3, 1.2};
  const bool updates = up_to(1) == 0;
  const int width = 1 + up_to(3);
  for (int i = 0; i <= layers; ++i) {
    Layer layer;
    layer.id = layer.name = i == 0 ? "data" : "l" + std::to_string(i);
    layer.kind = i == 0 ? kInputKind : "Linear";
    layer.outputs = {{Bytes(std::int64_t{1000} * (1 + up_to(50))), {}, "", i > 0}};
    if (i > 0 && up_to(5) == 0)
      layer.outputs.push_back({Bytes(std::int64_t{1000} * (1 + up_to(50))), {}, "", up_to(1) == 0});
    if (i == 0 && up_to(1) == 0) {
      layer.forward = {Seconds(0.001 * up_to(5)), {}, 9};
      std::mt19937 beside = random;  // what is drawn next does not depend on loading
      if (beside() % 2 == 0) layer.loading = Timing{Seconds(0.001 * static_cast<double>(beside() % 80)), {}, 9};
    }
    if (i > 0) {
      layer.forward.median = Seconds(0.001 * up_to(20));
      layer.backward.median = Seconds(0.001 * up_to(40));
      layer.parameter_bytes = Bytes(std::int64_t{4000} * up_to(20));
      if (measured && layer.parameter_bytes > Bytes(0)) layer.accumulation = Timing{layer.backward.median * 0.4, {}, 9};
      if (updates) layer.update = Timing{Seconds(0.0005 * up_to(10)), {}, 0};
      if (i == 1 || up_to(6) == 0) graph.edges.push_back({0, i, 0});
      std::set<int> sources;
      for (int reads = 1 + up_to(1); reads > 0 && i > 1; --reads) sources.insert(std::max(1, i - 1 - up_to(width)));
      if (i > 1 && up_to(9) == 0) sources.clear();  // another source
      if (sources.empty() && i > 1) graph.edges.push_back({0, i, 0});
      for (const int source : sources) {
        const auto outputs = static_cast<int>(graph.layers[static_cast<std::size_t>(source)].outputs.size());
        graph.edges.push_back({source, i, up_to(outputs - 1)});
      }
    }
    graph.layers.push_back(layer);
  }
  std::set<std::pair<int, int>> seen;
  std::erase_if(graph.edges, [&](const Edge& edge) { return !seen.emplace(edge.source, edge.destination).second; });
  if (layers > 2 && up_to(4) == 0) {
    const std::size_t first = 1 + static_cast<std::size_t>(up_to(layers - 2));
    for (const std::size_t i : {first, static_cast<std::size_t>(layers)}) {
      graph.layers[i].tied = {{"shared", Bytes(8000)}};
      graph.layers[i].parameter_bytes += Bytes(8000);
    }
  }
  std::mt19937 beside = random;  // what is drawn next does not depend on types
  const auto type = [&] { return beside() % 2 == 0 ? StateType::Float32 : StateType::Bfloat16; };
  graph.types.parameters = type();
  if (graph.types.parameters == StateType::Bfloat16) graph.types.gradients = type();
  graph.types.moments = type();
  validate(graph);
  return graph;
}

}  // namespace stagecraft::testing
