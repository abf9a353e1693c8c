#include "costmodel/prediction/device_types.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace stagecraft {

Graph with_profile(Graph graph, const std::string& type, const Graph& other) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("the graph for \"" + type + "\" " + why);
  };
  if (std::ranges::count(graph.profiles, type, &DeviceProfile::type) > 0)
    throw std::invalid_argument("there are two graphs for \"" + type + "\"");
  if (other.microbatch_samples != graph.microbatch_samples) {
    const auto samples = [](const Graph& of) {
      return of.microbatch_samples ? std::to_string(*of.microbatch_samples) : std::string("an unknown number of");
    };
    refuse("has microbatches of " + samples(other) + " samples, the graph of " + samples(graph));
  }
  if (other.layers.size() != graph.layers.size()) {
    refuse("has " + std::to_string(other.layers.size()) + " layers, the graph " + std::to_string(graph.layers.size()) +
           ": it describes another model");
  }
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const Layer& one = graph.layers[i];
    const Layer& two = other.layers[i];
    if (two.id != one.id) refuse("has layer \"" + two.id + "\" where the graph has \"" + one.id + "\"");
    if (activation_bytes(two) != activation_bytes(one) || two.parameter_bytes != one.parameter_bytes)
      refuse("has different outputs or parameters in layer \"" + one.id + "\"");
  }
  graph.profiles.push_back({type, other.device, other.iteration, other.layers});
  return graph;
}

Graph graph_on(const Graph& graph, const std::string& type) {
  Graph out = graph;
  out.profiles.clear();
  const auto it = std::ranges::find(graph.profiles, type, &DeviceProfile::type);
  if (it == graph.profiles.end()) return out;
  out.device = it->device;
  out.iteration = it->iteration;
  out.layers = it->layers;
  return out;
}

std::set<std::string> types_of(const Topology& topology, const std::vector<int>& devices) {
  std::set<std::string> out;
  for (const int device : devices) out.insert(device_at(topology, device).name);
  return out;
}

std::set<std::string> types_of(const Topology& topology, const Plan& plan) {
  std::set<std::string> out;
  for (const Stage& stage : plan.stages) out.merge(types_of(topology, stage.devices));
  return out;
}

std::optional<Bytes> least_memory(const Topology& topology, const std::vector<int>& devices) {
  std::optional<Bytes> out;
  for (const int device : devices) {
    const std::optional<Bytes>& memory = device_at(topology, device).memory;
    if (memory) out = out ? std::min(*out, *memory) : *memory;
  }
  return out;
}

}  // namespace stagecraft
