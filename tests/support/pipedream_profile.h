#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "costmodel/graph.h"

namespace stagecraft {

/// PipeDream's published profile at `path`, for tests: trusts the text. Times become seconds; a list of activation
/// sizes becomes several outputs; nodes called Input... become input layers. The kind is the description up to "(".
inline Graph read_pipedream_profile(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  const auto after = [](const std::string& line, const std::string& key) {
    return line.substr(line.find(key) + key.size());
  };
  Graph graph;
  graph.name = std::filesystem::path(path).stem().string();
  std::map<std::string, int> index;
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    const std::string::size_type bar = line.find(" -- ");
    if (line[0] == '\t') {
      graph.edges.push_back({index.at(line.substr(1, bar - 1)), index.at(line.substr(bar + 4)), std::nullopt});
      continue;
    }
    Layer layer;
    layer.id = line.substr(0, bar);
    layer.name = line.substr(bar + 4, line.find(" -- ", bar + 4) - bar - 4);
    layer.kind = layer.name.starts_with("Input") ? kInputKind : layer.name.substr(0, layer.name.find('('));
    layer.forward.median = Seconds(std::stod(after(line, "forward_compute_time=")) / 1000);
    layer.backward.median = Seconds(std::stod(after(line, "backward_compute_time=")) / 1000);
    std::istringstream sizes(after(line, "activation_size="));
    do {
      if (sizes.peek() == '[' || sizes.peek() == ';') sizes.get();
      double bytes = 0;
      sizes >> bytes;
      layer.outputs.push_back({Bytes(static_cast<std::int64_t>(bytes)), {}, "", true});
    } while (sizes.peek() == ';');
    layer.parameter_bytes = Bytes(static_cast<std::int64_t>(std::stod(after(line, "parameter_size="))));
    index[layer.id] = static_cast<int>(graph.layers.size());
    graph.layers.push_back(layer);
  }
  return graph;
}

}  // namespace stagecraft
