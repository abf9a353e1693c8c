#pragma once

#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/topology.h"

namespace stagecraft::testing {

/// A chain of layers "l0", "l1", ... with these times; each has `bytes` of output and `parameter_bytes`.
inline Graph chain_graph(const std::vector<double>& forward, const std::vector<double>& backward,
                         Bytes bytes = Bytes(0), Bytes parameter_bytes = Bytes(0)) {
  Graph graph;
  graph.name = "chain";
  for (std::size_t i = 0; i < forward.size(); ++i) {
    Layer layer;
    layer.id = layer.name = "l" + std::to_string(i);
    layer.kind = "Linear";
    layer.forward.median = Seconds(forward[i]);
    layer.backward.median = Seconds(backward[i]);
    layer.outputs = {Output{bytes, {}, "", true}};
    layer.parameter_bytes = parameter_bytes;
    graph.layers.push_back(layer);
    if (i > 0) graph.edges.push_back({static_cast<int>(i) - 1, static_cast<int>(i), 0});
  }
  return graph;
}

/// Devices in a single level.
inline Topology flat_topology(int devices, double bandwidth = 1e9, double latency = 0) {
  Topology topology;
  topology.name = "flat";
  topology.device.name = "device";
  topology.levels = {Level{"node", devices, Link{BytesPerSecond(bandwidth), Seconds(latency), {}, {}}}};
  return topology;
}

/// The plan with layer i of a chain in stage i.
inline Plan one_layer_a_stage(const Graph& graph, const Topology& topology, const std::vector<int>& replicas,
                              const std::string& schedule, int microbatches) {
  Partition partition;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) partition.stage_of_layer.push_back(static_cast<int>(i));
  partition.replicas = replicas;
  PlanSettings settings;
  settings.microbatches = microbatches;
  settings.schedule = schedule;
  return make_plan(graph, topology, partition, settings);
}

}  // namespace stagecraft::testing
