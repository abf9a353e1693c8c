#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/topology.h"

namespace stagecraft {

// Topologies with devices of several types: a graph holds what its layers cost on each (DeviceProfile).

/// `graph` with the costs of `other`, a graph of the same model, on devices of type `type` (Device::name). Throws
/// std::invalid_argument if `graph` has a profile of that type already, or if the layers, their outputs, parameters or
/// the samples of a microbatch differ.
[[nodiscard]] Graph with_profile(Graph graph, const std::string& type, const Graph& other);

/// `graph` with the costs of its layers on devices of type `type`; `graph` itself if it has no profile of that type.
[[nodiscard]] Graph graph_on(const Graph& graph, const std::string& type);

/// Names of the types of these devices, each once.
[[nodiscard]] std::set<std::string> types_of(const Topology& topology, const std::vector<int>& devices);

/// Names of the types of all devices of the plan's stages, each once.
[[nodiscard]] std::set<std::string> types_of(const Topology& topology, const Plan& plan);

/// The least memory of these devices; absent if none is limited.
[[nodiscard]] std::optional<Bytes> least_memory(const Topology& topology, const std::vector<int>& devices);

}  // namespace stagecraft
