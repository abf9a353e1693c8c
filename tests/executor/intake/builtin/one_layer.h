#pragma once

#include <functional>
#include <string>
#include <vector>

#include "executor/intake/builtin/blocks.h"

namespace stagecraft::intake {

/// The model of what `add` makes of an input "x" of one sample of `shape`.
inline model::Model one_layer(const std::vector<std::int64_t>& shape,
                              const std::function<ValueIndex(GraphBuilder&, ValueIndex)>& add) {
  return built_model("model", [&](GraphBuilder& graph) { return add(graph, graph.input({"x", "float32", shape})); });
}

}  // namespace stagecraft::intake
