#include "costmodel/command/tool_inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/results/accuracy_json.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"

namespace stagecraft {

void declare_devices(CLI::App& app, TopologyRequest& request, const std::string& note) {
  app.add_option("-n,--devices", request.devices,
                 "number of devices per level, innermost first; 8,4 is four hosts of 8; replaces TOPOLOGY" + note)
      ->delimiter(',')
      ->transform(integer(1))
      ->type_name("COUNT ...");
  app.add_option("-b,--bandwidths", request.bandwidths,
                 "bandwidth of each level's links (default: 1e9, which is 8 Gbit/s)")
      ->delimiter(',')
      ->transform(number_above(0))
      ->type_name("BYTES_PER_S ...");
}

void check_topology(const TopologyRequest& request) {
  if (request.file.empty() == request.devices.empty())
    throw CLI::ValidationError("TOPOLOGY", "give either a topology file or --devices");
  if (!request.bandwidths.empty() && request.devices.empty())
    throw CLI::ValidationError("--bandwidths", "only valid with --devices; a topology file has its own");
  if (request.bandwidths.size() > request.devices.size()) {
    throw CLI::ValidationError(
        "--bandwidths", fmt::format("found {} for {} of --devices", count_text(request.bandwidths.size(), "value"),
                                    count_text(request.devices.size(), "level")));
  }
}

Topology topology_of(const TopologyRequest& request) {
  if (request.devices.empty()) return format::read_topology(request.file);
  Topology out;
  out.name = "command line";
  for (std::size_t i = 0; i < request.devices.size(); ++i) {
    Level level;
    level.name = fmt::format("level {}", i + 1);
    level.count = request.devices[i];
    level.link.bandwidth = BytesPerSecond(i < request.bandwidths.size() ? request.bandwidths[i] : 1e9);
    out.levels.push_back(level);
  }
  validate(out);
  return out;
}

void add_acceptance_options(CLI::App& app, Acceptance& acceptance, const std::string& consequence) {
  add_accept_untrusted(app, acceptance.untrusted,
                       "use times even if the graph or the topology says that they cannot be trusted");
  app.add_flag("--accept-other-device", acceptance.other_device,
               "use the graph's times even if they were measured on another kind of device" + consequence);
}

std::string check_times(const std::string& program, const std::string& path, Graph& graph, Topology& topology,
                        const Acceptance& acceptance) {
  const std::string distrust = distrust_text(graph);
  if (!distrust.empty() && !acceptance.untrusted)
    throw InputError(ErrorKind::UntrustedProfile,
                     path + ": " + distrust + "; profile again, or add --accept-untrusted");
  const bool links = !distrust_text(topology).empty();
  std::vector<std::string> untrusted;
  if (!distrust.empty()) untrusted.push_back(path);
  if (links) untrusted.emplace_back("the links");
  if (!untrusted.empty())
    warn(program, fmt::format("{} {} not trusted; stagecraft doctor says why", fmt::join(untrusted, " and "),
                              links ? "are" : "is"));
  try {
    check_has_times(graph);
    take_kind(topology, graph);
    if (topology.device.kind == DeviceKind::Unknown && topology.device.memory)
      warn(program, "neither " + path +
                        " nor the topology says whether its devices are GPUs, which need more memory "
                        "than is counted; add \"kind\": \"gpu\" or \"processor\" to the topology's device");
    return accepted_differences(graph, topology, acceptance.other_device);
  } catch (const std::invalid_argument& e) { throw InputError(kind_of(e), path + ": " + e.what()); }
}

void check_links(const std::string& program, const TopologyRequest& request, const Topology& topology,
                 const Acceptance& acceptance) {
  for (std::size_t i = request.bandwidths.size(); i < request.devices.size(); ++i) {
    if (request.devices[i] > 1) warn(program, fmt::format("level {} has no --bandwidths, assuming 1 GB/s", i + 1));
  }
  const std::string distrust = distrust_text(topology);
  if (!distrust.empty() && !acceptance.untrusted)
    throw InputError(ErrorKind::UntrustedLinks,
                     request.file + ": " + distrust + "; measure them again, or add --accept-untrusted");
}

void add_graph_for_option(CLI::App& app, std::vector<std::string>& graphs_for) {
  app.add_option("--graph-for", graphs_for,
                 "the graph of the same model, profiled on devices of another type of the topology; once per type")
      ->type_name("TYPE=GRAPH")
      ->check([](const std::string& text) {
        const std::size_t at = text.find('=');
        return at == text.npos || at == 0 || at + 1 == text.size() ? "found " + text + ", expected TYPE=GRAPH"
                                                                   : std::string();
      });
}

Graph with_profiles(Graph graph, const Topology& topology, const std::vector<std::string>& graphs_for,
                    const Acceptance& acceptance) {
  std::vector<std::string> types;
  for (const DeviceRange& range : topology.others) {
    if (std::find(types.begin(), types.end(), range.device.name) == types.end()) types.push_back(range.device.name);
  }
  for (const std::string& assignment : graphs_for) {
    const std::string type = assignment.substr(0, assignment.find('='));
    const std::string path = assignment.substr(assignment.find('=') + 1);
    if (types.empty()) {
      throw std::invalid_argument("--graph-for " + assignment + ": the topology has devices of one type only, \"" +
                                  topology.device.name + "\"");
    }
    if (std::find(types.begin(), types.end(), type) == types.end())
      throw InputError(ErrorKind::UnknownName,
                       "--graph-for " + assignment + ": " + unknown_name("type of devices", type, types));
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

void add_scenario_files(CLI::App& app, ScenarioFiles& files) {
  app.add_option("GRAPH", files.graph, "graph.json; - is standard input")->required();
  app.add_option("TOPOLOGY", files.topology.file, "topology.json")->required();
}

namespace {

/// Only PLAN is missing, unless the file in TOPOLOGY's place is a plan.
CLI::RequiredError missing_plan(const ScenarioFiles& files) {
  const std::string& second = files.topology.file;
  if (second.empty() || !files.topology.devices.empty() || format::file_kind(second) != "stagecraft.plan")
    return CLI::RequiredError("PLAN");
  return {fmt::format("TOPOLOGY is required: {} is the plan; give the topology before it, or --devices", second),
          CLI::ExitCodes::RequiredError};
}

}  // namespace

void add_scenario_files_or_devices(CLI::App& app, ScenarioFiles& files, std::string& plan) {
  app.add_option("GRAPH", files.graph, "graph.json; - is standard input")->required();
  app.add_option("TOPOLOGY", files.topology.file, "topology.json; or use --devices");
  app.add_option("PLAN", plan, "plan.json (required)");
  declare_devices(app, files.topology);
  app.callback([&files, &plan] {
    // With --devices, the second file is the plan.
    if (!files.topology.devices.empty() && plan.empty()) std::swap(files.topology.file, plan);
    if (plan.empty()) throw missing_plan(files);
    check_topology(files.topology);
  });
}

void add_scenario_options(CLI::App& app, ScenarioFiles& files, const std::string& consequence) {
  app.add_option("--calibration", files.calibration,
                 "calibration.json of stagecraft calibrate: factors from measured runs")
      ->type_name("FILE");
  add_graph_for_option(app, files.graphs_for);
  add_acceptance_options(app, files.acceptance, consequence);
}

ScenarioInputs read_scenario(const std::string& program, const ScenarioFiles& files) {
  ScenarioInputs out{format::read_graph(files.graph), topology_of(files.topology), {}, {}};
  if (!files.calibration.empty()) out.calibration = format::read_calibration(files.calibration);
  check_links(program, files.topology, out.topology, files.acceptance);
  out.graph = with_profiles(std::move(out.graph), out.topology, files.graphs_for, files.acceptance);
  out.other_device = check_times(program, files.graph, out.graph, out.topology, files.acceptance);
  return out;
}

void warn_other_device(const std::string& program, const std::string& other_device) {
  if (!other_device.empty()) fmt::print(stderr, "{}: note: {}\n", program, other_device);
}

std::string settings_text() {
  std::vector<std::vector<std::string>> rows;
  for (const SettingText& text : settings_known()) rows.push_back({"  " + text.name, text.values, text.meaning});
  return table_text(
      {{.title = "  setting", .left = true}, {.title = "values", .left = true}, {.title = "", .left = true}}, rows,
      120);
}

CLI::Option* add_set_option(CLI::App& app, std::vector<std::string>& changes) {
  return app.add_option("--set", changes, "a change, NAME=VALUE; see below")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
}

Scenario with_settings(Scenario scenario, const std::vector<std::string>& changes) {
  for (const std::string& change : changes) {
    try {
      scenario = with_change(std::move(scenario), change);
    } catch (const std::invalid_argument& e) { throw InputError(kind_of(e), std::string("--set ") + e.what()); }
  }
  return scenario;
}

}  // namespace stagecraft
