#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "costmodel/topology.h"

// For the tools that take a cluster that need not exist: a topology from the command line.

namespace stagecraft {

/// Where a topology comes from: a file, or counts and bandwidths.
struct TopologyRequest {
  std::string file;
  std::vector<int> devices;        ///< by level, innermost first; empty: of the file
  std::vector<double> bandwidths;  ///< bytes/s, of the first levels
};

/// Declares --devices and --bandwidths; `note` is added to the help of --devices.
void declare_devices(CLI::App& app, TopologyRequest& request, const std::string& note = "");

/// Throws CLI::ValidationError unless the request has either a file or devices, and no more bandwidths than levels.
void check_topology(const TopologyRequest& request);

/// The topology of the request: the file's, or levels of plain counts and bandwidths. Throws as read_topology does.
[[nodiscard]] Topology topology_of(const TopologyRequest& request);

}  // namespace stagecraft
