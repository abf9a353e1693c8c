#pragma once

#include <string>

#include "costmodel/format/document_schema.h"
#include "costmodel/topology.h"

namespace stagecraft::format {

// See graph_json.h for the rules of all readers and writers.

[[nodiscard]] Topology parse_topology(const std::string& text, const std::string& file);
[[nodiscard]] Topology read_topology(const std::string& path);
[[nodiscard]] std::string topology_json(const Topology& topology);
[[nodiscard]] DocumentSchema topology_schema();

}  // namespace stagecraft::format
