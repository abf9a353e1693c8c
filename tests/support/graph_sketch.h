#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "executor/intake/graph/layers/layer_groups.h"

namespace stagecraft {

/// Builds graphs using the names of their values.
class Sketch {
 public:
  Sketch() { graph.file = "model.pt2"; }
  int value(const std::string& name, intake::GraphValue::Origin origin = intake::GraphValue::Origin::Node) {
    if (const auto it = index.find(name); it != index.end()) return it->second;
    intake::GraphValue made{.name = name, .origin = origin};
    made.meta = intake::TensorMeta{};
    graph.values.push_back(made);
    return index[name] = static_cast<int>(graph.values.size()) - 1;
  }
  /// A node with the same name as its result.
  intake::GraphNode& node(const std::string& name, const std::string& path, const std::vector<std::string>& reads,
                          const std::string& type = "Block") {
    intake::GraphNode made{.name = name, .target = "torch.ops.aten." + name + ".default", .modules = {{"", "Net", 0}}};
    std::string whole;
    for (std::size_t begin = 0; begin < path.size();) {
      const std::size_t dot = std::min(path.find('.', begin), path.size());
      whole = path.substr(0, dot);
      const std::string part = path.substr(begin, dot - begin);
      // "blocks" is a list, which has no frame.
      if (part != "blocks") made.modules.push_back({whole, dot == path.size() ? "nn." + type : "nn.Outer", 0});
      begin = dot + 1;
    }
    for (const std::string& each : reads) made.reads.push_back(value(each));
    made.gives = {value(name)};
    graph.values[static_cast<std::size_t>(made.gives[0])].source = static_cast<int>(graph.nodes.size());
    graph.nodes.push_back(made);
    return graph.nodes.back();
  }
  void in_place(intake::GraphNode& node, const std::string& written) {
    node.writes = {value(written)};
    node.aliases = {{node.gives[0], value(written)}};
  }
  intake::Grouping groups(const std::string& root, const std::string& how = "auto") {
    return intake::layer_groups(graph, value(root), intake::parse_granularity(how));
  }

  intake::OperatorGraph graph;
  std::map<std::string, int> index;
};

}  // namespace stagecraft
