#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "costmodel/topology.h"
#include "partitioner/strategy.h"

// The options that stagecraft plan has with and without --objective-profile.

namespace stagecraft::partitioner {

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

/// Declares the strategy's own options; `values` must outlive the parsing. The help shows them under `title`.
void declare_options(CLI::App& app, const Strategy& strategy, const std::string& title, OptionValues& values);

/// The strategy that has the first of the given options; nullptr if none is given.
[[nodiscard]] const Strategy* owner_of_options(const OptionValues& given);

/// "PipeDream's and optimal's": the owners of all strategies that have options.
[[nodiscard]] std::string titles_of_options();

}  // namespace stagecraft::partitioner
