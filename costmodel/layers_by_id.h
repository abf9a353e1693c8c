#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "costmodel/graph.h"

namespace stagecraft {

/// The layers of a graph by id, for looking up many of them: layer_index goes through all layers each time.
class LayersById {
 public:
  /// `graph` must outlive it.
  explicit LayersById(const Graph& graph);

  /// As layer_index.
  [[nodiscard]] int index(const std::string& id) const;

 private:
  const Graph& graph_;
  std::unordered_map<std::string_view, int> by_id_;
};

}  // namespace stagecraft
