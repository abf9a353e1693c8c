#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/accuracy/calibrate.h"
#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/calibration_json.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/json.h"
#include "costmodel/graph.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/device_types.h"
#include "costmodel/topology.h"

// For the main functions of the tools that predict: the documents that they predict from.

namespace stagecraft {

/// Doubts about a graph that the user accepts.
struct Acceptance {
  bool untrusted = false;
  bool other_device = false;
};

/// Declares --accept-untrusted and --accept-other-device; `consequence` says what else the latter does.
inline void add_acceptance_options(CLI::App& app, Acceptance& acceptance, const std::string& consequence = "") {
  add_accept_untrusted(app, acceptance.untrusted,
                       "use the graph's times even if the profile says that they cannot be trusted");
  app.add_flag("--accept-other-device", acceptance.other_device,
               "use the graph's times even if they were measured on another kind of device" + consequence);
}

/// Throws std::invalid_argument, beginning with `path`, if the graph has no times, or times that cannot be trusted or
/// come from another device, unless the user accepted that. Warns on stderr, as `program`, about accepted times that
/// cannot be trusted. Returns how the device differs, like accepted_differences.
inline std::string check_times(const std::string& program, const std::string& path, Graph& graph,
                               const Topology& topology, const Acceptance& acceptance) {
  const std::string distrust = distrust_text(graph);
  if (!distrust.empty() && !acceptance.untrusted)
    throw InputError(ErrorKind::UntrustedProfile,
                     path + ": " + distrust + "; profile again, or add --accept-untrusted");
  if (!distrust.empty()) fmt::print(stderr, "{}: warning: {}: {}\n", program, path, distrust);
  try {
    check_has_times(graph);
    return accepted_differences(graph, topology, acceptance.other_device);
  } catch (const std::invalid_argument& e) { throw InputError(kind_of(e), path + ": " + e.what()); }
}

/// Declares --graph-for.
inline void add_graph_for_option(CLI::App& app, std::vector<std::string>& graphs_for) {
  app.add_option("--graph-for", graphs_for,
                 "the graph of the same model, profiled on devices of another type of the topology; once per type")
      ->type_name("TYPE=GRAPH")
      ->check([](const std::string& each) {
        const std::size_t at = each.find('=');
        return at == each.npos || at == 0 || at + 1 == each.size() ? "found " + each + ", expected TYPE=GRAPH"
                                                                   : std::string();
      });
}

/// `graph` with the graphs of add_graph_for_option. Throws std::invalid_argument for a type that the topology does not
/// have, and as with_profile, beginning with the file, and for times that cannot be trusted, if that was not accepted.
inline Graph with_profiles(Graph graph, const Topology& topology, const std::vector<std::string>& graphs_for,
                           const Acceptance& acceptance) {
  std::vector<std::string> types;
  for (const DeviceRange& range : topology.others) {
    if (std::find(types.begin(), types.end(), range.device.name) == types.end()) types.push_back(range.device.name);
  }
  for (const std::string& each : graphs_for) {
    const std::string type = each.substr(0, each.find('='));
    const std::string path = each.substr(each.find('=') + 1);
    if (types.empty()) {
      throw std::invalid_argument("--graph-for " + each + ": the topology has devices of one type only, \"" +
                                  topology.device.name + "\"");
    }
    if (std::find(types.begin(), types.end(), type) == types.end())
      throw InputError(ErrorKind::UnknownName,
                       "--graph-for " + each + ": " + unknown_name("type of devices", type, types));
    const Graph other = format::read_graph(path);
    try {
      check_has_times(other);
      const std::string distrust = distrust_text(other);
      if (!distrust.empty() && !acceptance.untrusted)
        throw InputError(ErrorKind::UntrustedProfile, distrust + "; profile again, or add --accept-untrusted");
      graph = with_profile(std::move(graph), type, other);
    } catch (const std::invalid_argument& e) { throw InputError(kind_of(e), path + ": " + e.what()); }
  }
  return graph;
}

/// The files from which a tool predicts.
struct ScenarioFiles {
  std::string graph;
  std::string topology;
  std::string calibration;              ///< empty: none
  std::vector<std::string> graphs_for;  ///< of add_graph_for_option
  Acceptance acceptance;

  [[nodiscard]] std::vector<std::string> all() const {
    std::vector<std::string> out{graph, topology};
    if (!calibration.empty()) out.push_back(calibration);
    for (const std::string& each : graphs_for) out.push_back(each.substr(each.find('=') + 1));
    return out;
  }
};

/// Declares GRAPH and TOPOLOGY.
inline void add_scenario_files(CLI::App& app, ScenarioFiles& files) {
  app.add_option("GRAPH", files.graph, "graph.json; - is standard input")->required();
  app.add_option("TOPOLOGY", files.topology, "topology.json")->required();
}

/// Declares --calibration and add_acceptance_options.
inline void add_scenario_options(CLI::App& app, ScenarioFiles& files, const std::string& consequence = "") {
  app.add_option("--calibration", files.calibration,
                 "calibration.json of stagecraft calibrate: factors from measured runs");
  add_graph_for_option(app, files.graphs_for);
  add_acceptance_options(app, files.acceptance, consequence);
}

/// What a tool predicts from.
struct ScenarioInputs {
  Graph graph;
  Topology topology;
  std::optional<Calibration> calibration;
  std::string other_device;  ///< Prediction::other_device
};

/// The documents of these files, after check_times. Throws as the readers and check_times do.
inline ScenarioInputs read_scenario(const std::string& program, const ScenarioFiles& files) {
  ScenarioInputs out{format::read_graph(files.graph), format::read_topology(files.topology), {}, {}};
  if (!files.calibration.empty()) out.calibration = format::read_calibration(files.calibration);
  out.graph = with_profiles(std::move(out.graph), out.topology, files.graphs_for, files.acceptance);
  out.other_device = check_times(program, files.graph, out.graph, out.topology, files.acceptance);
  return out;
}

/// Says on stderr, as `program`, how the device of the times differs, unless `other_device` is empty.
inline void warn_other_device(const std::string& program, const std::string& other_device) {
  if (!other_device.empty()) fmt::print(stderr, "{}: note: {}\n", program, other_device);
}

}  // namespace stagecraft
