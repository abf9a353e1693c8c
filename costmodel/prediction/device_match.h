#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/topology.h"

namespace stagecraft {

/// What `graph` was measured on: Graph::device or, for older documents of stagecraft-profile, their provenance. Unknown
/// fields are empty.
[[nodiscard]] MeasuredDevice measured_device(const Graph& graph);

/// The device and the host's processors of `topology` in the same form: Topology::device or, for older documents of
/// stagecraft-links, their provenance. A missing kind is inferred from a name such as "CPU" or "H100-80GB".
[[nodiscard]] MeasuredDevice described_device(const Topology& topology);

/// Sets the kind of the topology's devices, if it is unknown, from their name, else from what `graph` was measured on:
/// what devices reserve and how they reduce depends on it.
void take_kind(Topology& topology, const Graph& graph);

/// Why the times of `graph` are not valid on `topology`, one clause per reason, such as "the graph was measured on a
/// processor (AMD EPYC), the topology's devices are GPUs (H100-80GB)". Empty if nothing known differs: a kind, model or
/// number of processors that only one of them states does not count, and models differ only if each has a word that the
/// other lacks ("NVIDIA H100 80GB HBM3" and "H100-80GB" do not). A slowdown of ranks that share a host's
/// processors is valid on hosts with the same number of them and not on GPUs. Types in Topology::others for which the
/// graph has no profile, or one of another model, count too.
[[nodiscard]] std::vector<std::string> device_differences(const Graph& graph, const Topology& topology);

/// For a tool's command line, where `accept_other` is its --accept-other-device: empty if nothing differs; else the
/// differences in one text, and `graph` becomes without_host(graph). With estimated times, also their estimate_text.
/// Throws std::invalid_argument with the differences and a remedy if they are not accepted.
[[nodiscard]] std::string accepted_differences(Graph& graph, const Topology& topology, bool accept_other);

/// Clause to print if the graph has a slowdown and it is unknown whether the topology's hosts have as many processors
/// as the host on which it was measured; else empty.
[[nodiscard]] std::string slowdown_assumption(const Graph& graph, const Topology& topology);

/// `graph` without what belongs to the host on which it was measured: the slowdown, and the times to load inputs.
[[nodiscard]] Graph without_host(Graph graph);

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
