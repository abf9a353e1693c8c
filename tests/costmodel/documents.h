#pragma once

#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/topology.h"

// One value of each file kind with every field set, so that its document has every key.

namespace stagecraft {

inline Provenance full_provenance() {
  return {
      "stagecraft-profile 0.1.0", "a processor", {{"torch", "2.11.0"}}, "2026-01-02T03:04:05Z", {{"note", "any text"}}};
}

inline Layer full_layer(const std::string& id) {
  Layer layer;
  layer.id = id;
  layer.name = "the layer " + id;
  layer.kind = "Linear";
  layer.forward = {1.5_s, 0.25_s, 5};
  layer.backward = {2_s, 0.5_s, 6};
  layer.update = Timing{0.125_s, 0.0625_s, 7};
  layer.outputs = {{16_B, {2, 2}, "float32", true}, {8_B, {2}, "int32", false}};
  layer.parameter_bytes = 64_B;
  layer.parameters = 16;
  layer.tied = {{"embedding.weight", 32_B}};
  layer.saved_bytes = 24_B;
  layer.workspace_bytes = 4_B;
  layer.stage = 1;
  return layer;
}

/// a -> b twice, by its two outputs.
inline Graph full_graph() {
  Graph graph;
  graph.name = "full";
  graph.options = {{"width", "8"}};
  graph.microbatch_samples = 2;
  graph.dtype = "float32";
  graph.optimizer = "adam";
  graph.optimizer_state_values = 2;
  graph.threads = 4;
  graph.iteration = Timing{9_s, 0.5_s, 8};
  graph.slowdown = {1.0, 1.5};
  graph.layers = {full_layer("a"), full_layer("b")};
  graph.edges = {{0, 1, 0}, {0, 1, 1}};
  graph.provenance = full_provenance();
  return graph;
}

inline Topology full_topology() {
  Topology topology;
  topology.name = "full";
  topology.device = {"card", 1000_B};
  topology.levels = {{"server", 2, {BytesPerSecond(8), 0.5_s, {{{1_B, 1_s}, {2_B, 2_s}}}, {{2, {{{1_B, 3_s}}}}}}},
                     {"rack", 2, {BytesPerSecond(4), 1_s, {}, {}}}};
  topology.provenance = full_provenance();
  return topology;
}

inline Plan full_plan() {
  Plan plan;
  plan.model = "full";
  plan.options = {{"width", "8"}};
  plan.microbatch_samples = 2;
  plan.microbatches = 4;
  plan.schedule = "interleaved-1f1b";
  plan.chunks = 2;
  plan.strategy = "by hand";
  plan.stages = {{{"a"}, {0}, true}, {{"b"}, {1}, false}, {{"c"}, {0}, false}, {{"d"}, {1}, false}};
  for (int s = 0; s < 3; ++s) {
    const std::string layer(1, static_cast<char>('a' + s));
    plan.boundaries.push_back(
        {s, s + 1, {{layer, 0, 16_B, {2, 2}, "float32", true}, {layer, 1, 8_B, {2}, "int32", false}}});
  }
  plan.warmups = {3, 2, 1, 0};
  plan.steady_state = 2_s;
  plan.iteration = 10_s;
  plan.provenance = full_provenance();
  return plan;
}

}  // namespace stagecraft
