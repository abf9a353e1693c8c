#pragma once

#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/topology.h"

namespace stagecraft {

/// What `graph` was measured on: Graph::device; of older documents that stagecraft-profile wrote what their provenance
/// says. Fields that nobody stated are empty.
[[nodiscard]] MeasuredDevice measured_device(const Graph& graph);

/// The device and the host's processors of `topology` in the same words: Topology::device, in older documents of
/// stagecraft-links what their provenance says, and where no kind is stated the one that a name such as "CPU" or
/// "H100-80GB" tells.
[[nodiscard]] MeasuredDevice described_device(const Topology& topology);

/// Why the times of `graph` do not hold on `topology`, a clause each, such as "the graph was measured on a processor
/// (AMD EPYC), the topology's devices are GPUs (H100-80GB)". Empty if nothing known differs: a kind, model or number of
/// processors that one of them does not state never does, and models differ where each has a word that the other lacks
/// ("NVIDIA H100 80GB HBM3" and "H100-80GB" do not). A slowdown of ranks that share a host's processors holds on hosts
/// with as many of them and on no GPUs.
[[nodiscard]] std::vector<std::string> device_differences(const Graph& graph, const Topology& topology);

/// For a tool's command line, where `accept_other` is its --accept-other-device: empty where nothing differs; else the
/// differences in one text, and `graph` becomes without_host(graph). Throws std::invalid_argument with the differences
/// and what to do where they are not accepted.
[[nodiscard]] std::string accepted_differences(Graph& graph, const Topology& topology, bool accept_other);

/// Clause to tell where the graph has a slowdown and it is unknown whether the topology's hosts have as many processors
/// as the host on which it was measured; else empty.
[[nodiscard]] std::string slowdown_assumption(const Graph& graph, const Topology& topology);

/// `graph` without what belongs to the host on which it was measured: the slowdown, and the times to load inputs.
[[nodiscard]] Graph without_host(Graph graph);

}  // namespace stagecraft
