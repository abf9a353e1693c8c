#include <iostream>

#include "costmodel/accuracy/calibrate.h"

#include <fmt/format.h>

#include "costmodel/command/tool.h"
#include "costmodel/command/tool_inputs.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/results/accuracy_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/text/progress.h"

namespace {

/// The measured runs among `paths`; each belongs to the plan before it.
std::vector<stagecraft::CalibrationRun> read_runs(const std::vector<std::string>& paths) {
  std::vector<stagecraft::CalibrationRun> out;
  std::optional<stagecraft::Plan> plan;
  std::string unused;
  for (const std::string& path : paths) {
    const std::string text = stagecraft::format::read_text(path);
    if (stagecraft::format::text_kind(text) == "stagecraft.plan") {
      if (!unused.empty()) throw std::invalid_argument(unused + ": no measurement follows this plan");
      plan = stagecraft::format::parse_plan(text, path);
      unused = path;
      continue;
    }
    auto measurement = stagecraft::format::parse_measurement(text, path);
    if (!plan)
      throw std::invalid_argument(path + ": no plan.json before it; give the plan that this run measured first");
    unused.clear();
    out.push_back({path, *plan, std::move(measurement)});
  }
  if (!unused.empty()) throw std::invalid_argument(unused + ": no measurement follows this plan");
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  std::string graph_path;
  std::string topology_path;
  std::vector<std::string> run_paths;
  std::string output = "-";
  stagecraft::CalibrateOptions options;
  bool force = false;
  stagecraft::Acceptance acceptance;
  return stagecraft::run_tool(
      {"calibrate",
       "Learns one factor per mechanism (compute, host, each level's link, memory) from measured runs, for predict "
       "--calibration.",
       "stagecraft calibrate graph.json topology.json plan.json measured.json other-plan.json other-measured.json "
       "-o calibration.json"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("GRAPH", graph_path, "graph.json with the times that predictions start from")->required();
        app.add_option("TOPOLOGY", topology_path, "topology.json")->required();
        app.add_option("RUNS", run_paths, "plan.json, then one or more measured.json of it; then the next plan")
            ->required();
        app.add_option("-o,--output", output, "output file; - is standard output")
            ->type_name("FILE")
            ->capture_default_str();
        app.add_option("--skip", options.skip, "number of measured steps to skip at the start of each run")
            ->capture_default_str()
            ->transform(stagecraft::integer<std::size_t>(0));
        stagecraft::add_force_option(app, force);
        add_acceptance_options(app, acceptance);
      },
      [&] {
        std::vector<std::string> inputs{graph_path, topology_path};
        inputs.insert(inputs.end(), run_paths.begin(), run_paths.end());
        stagecraft::format::check_outputs(inputs, {{output, "stagecraft.calibration"}}, force);
        auto graph = stagecraft::format::read_graph(graph_path);
        auto topology = stagecraft::format::read_topology(topology_path);
        check_links("stagecraft-calibrate", {topology_path, {}, {}}, topology, acceptance);
        static_cast<void>(check_times("stagecraft-calibrate", graph_path, graph, topology, acceptance));
        auto calibration = [&] {
          const stagecraft::LiveProgress progress([&](stagecraft::Seconds passed) {
            return fmt::format("calibrating from {} files: {}", run_paths.size(), stagecraft::time_text(passed));
          });
          return stagecraft::calibrate(graph, topology, read_runs(run_paths), options);
        }();
        stagecraft::sign(calibration.provenance);
        calibration.provenance.notes["graph"] = graph_path;
        calibration.provenance.notes["topology"] = topology_path;
        stagecraft::format::write_text(output, stagecraft::format::calibration_json(calibration));
        std::cerr << stagecraft::calibration_text(calibration) << "\n";
        if (calibration.plans > 1) {
          std::cerr << fmt::format(
              "median error of a step: {:.1f} % without factors, {:.1f} % with those of the other plans\n",
              calibration.error_before * 100, calibration.error_after * 100);
        } else {
          std::cerr
              << "note: there is only one plan, so the error is that of the runs from which the factors were learned\n";
        }
        if (calibration.width_is_declared) std::cerr << "note: too few plans to learn the interval; assuming 15 %\n";
        return 0;
      });
}
