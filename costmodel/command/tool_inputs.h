#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

#include "costmodel/accuracy/calibrate.h"
#include "costmodel/analysis/whatif.h"
#include "costmodel/graph.h"
#include "costmodel/topology.h"

// For the main functions of the tools that predict: the documents that they predict from, a cluster that need not exist
// from the command line, and changes with --set.

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

/// Doubts about a graph and a topology that the user accepts.
struct Acceptance {
  bool untrusted = false;
  bool other_device = false;
};

/// Declares --accept-untrusted and --accept-other-device; `consequence` says what else the latter does.
void add_acceptance_options(CLI::App& app, Acceptance& acceptance, const std::string& consequence = "");

/// Throws std::invalid_argument, beginning with `path`, if the graph has no times, or times that cannot be trusted or
/// come from another device, unless the user accepted that. Warns on stderr, as `program`, in one line about accepted
/// times and links that cannot be trusted. Gives the topology its kind of device, see take_kind, and warns if it stays
/// unknown but memory is limited. Returns how the device differs, like accepted_differences.
std::string check_times(const std::string& program, const std::string& path, Graph& graph, Topology& topology,
                        const Acceptance& acceptance);

/// Throws InputError, beginning with the request's file, if the topology's links cannot be trusted, unless the user
/// accepted that. Warns on stderr, as `program`, about bandwidths that are assumed.
void check_links(const std::string& program, const TopologyRequest& request, const Topology& topology,
                 const Acceptance& acceptance);

/// Declares --graph-for.
void add_graph_for_option(CLI::App& app, std::vector<std::string>& graphs_for);

/// `graph` with the graphs of add_graph_for_option. Throws std::invalid_argument for a type that the topology does not
/// have, and as with_profile, beginning with the file, and for times that cannot be trusted, if that was not accepted.
Graph with_profiles(Graph graph, const Topology& topology, const std::vector<std::string>& graphs_for,
                    const Acceptance& acceptance);

/// The files from which a tool predicts.
struct ScenarioFiles {
  std::string graph;
  TopologyRequest topology;
  std::string calibration;              ///< empty: none
  std::vector<std::string> graphs_for;  ///< of add_graph_for_option
  Acceptance acceptance;

  [[nodiscard]] std::vector<std::string> all() const {
    std::vector<std::string> out{graph};
    if (!topology.file.empty()) out.push_back(topology.file);
    if (!calibration.empty()) out.push_back(calibration);
    for (const std::string& assignment : graphs_for) out.push_back(assignment.substr(assignment.find('=') + 1));
    return out;
  }
};

/// Declares GRAPH and TOPOLOGY.
void add_scenario_files(CLI::App& app, ScenarioFiles& files);
/// Declares GRAPH, TOPOLOGY and PLAN, and declare_devices, which replaces TOPOLOGY. Parsing throws CLI::ParseError if
/// one is missing, which is TOPOLOGY if the second file is a plan, and as check_topology. Sets the callback of `app`.
void add_scenario_files_or_devices(CLI::App& app, ScenarioFiles& files, std::string& plan);

/// Declares --calibration and add_acceptance_options.
void add_scenario_options(CLI::App& app, ScenarioFiles& files, const std::string& consequence = "");

/// What a tool predicts from.
struct ScenarioInputs {
  Graph graph;
  Topology topology;
  std::optional<Calibration> calibration;
  std::string other_device;  ///< Prediction::other_device
};

/// The documents of these files, after check_links and check_times. Throws as the readers and these do.
ScenarioInputs read_scenario(const std::string& program, const ScenarioFiles& files);

/// Says on stderr, as `program`, how the profiled device differs, unless `other_device` is empty.
void warn_other_device(const std::string& program, const std::string& other_device);

/// A table of all settings, for --help.
std::string settings_text();

/// Declares --set; settings_text belongs to the tool's help.
CLI::Option* add_set_option(CLI::App& app, std::vector<std::string>& changes);

/// The scenario after all changes. Throws InputError for one that is not valid, beginning with "--set".
Scenario with_settings(Scenario scenario, const std::vector<std::string>& changes);

}  // namespace stagecraft
