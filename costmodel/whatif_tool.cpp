#include "costmodel/whatif.h"

#include "costmodel/device_match.h"
#include "costmodel/format/calibration_json.h"
#include "costmodel/format/files.h"
#include "costmodel/format/json.h"
#include "costmodel/format/whatif_json.h"
#include "costmodel/table.h"
#include "costmodel/tool.h"

namespace {

std::string settings_text() {
  std::vector<std::vector<std::string>> rows;
  for (const stagecraft::SettingText& text : stagecraft::settings_known())
    rows.push_back({"  " + text.name, text.values, text.meaning});
  return stagecraft::table_text(
      {{.title = "  setting", .left = true}, {.title = "values", .left = true}, {.title = "", .left = true}}, rows,
      120);
}

}  // namespace

int main(int argc, char** argv) {
  std::string graph_path;
  std::string topology_path;
  std::string plan_path;
  std::string calibration_path;
  std::vector<std::string> changes;
  bool accept_other_device = false;
  bool json = false;
  return stagecraft::run_tool(
      {"whatif", "Predicts a plan before and after changes to the model's times, the links, the devices or the plan.",
       "stagecraft whatif graph.json topology.json plan.json --set link.node.bandwidth=2x --set schedule=zb-h1\n  "
       "stagecraft whatif graph.json topology.json plan.json --set stage.1.compute=0.8x --json\n\n" +
           settings_text()},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("GRAPH", graph_path, "graph.json; - is standard input")->required();
        app.add_option("TOPOLOGY", topology_path, "topology.json")->required();
        app.add_option("PLAN", plan_path, "plan.json")->required();
        app.add_option("--set", changes, "a change, NAME=VALUE; see below")->required()->allow_extra_args(false);
        app.add_option("--calibration", calibration_path,
                       "calibration.json of stagecraft calibrate: factors from measured runs");
        app.add_flag("--json", json, "a stagecraft.whatif document instead of a table");
        app.add_flag("--accept-other-device", accept_other_device,
                     "predict even if the graph was measured on another kind of device");
      },
      [&] {
        stagecraft::Scenario scenario{stagecraft::format::read_graph(graph_path),
                                      stagecraft::format::read_topology(topology_path),
                                      stagecraft::format::read_plan(plan_path)};
        std::optional<stagecraft::Calibration> calibration;
        if (!calibration_path.empty()) calibration = stagecraft::format::read_calibration(calibration_path);
        try {
          stagecraft::check_has_times(scenario.graph);
          (void)stagecraft::accepted_differences(scenario.graph, scenario.topology, accept_other_device);
        } catch (const std::invalid_argument& e) { throw std::invalid_argument(graph_path + ": " + e.what()); }
        for (const std::string& change : changes) {
          try {
            static_cast<void>(with_change(scenario, change));
          } catch (const std::invalid_argument& e) { throw std::invalid_argument(std::string("--set ") + e.what()); }
        }
        const auto result = [&] {
          try {
            return stagecraft::what_if(scenario, changes, calibration);
          } catch (const std::invalid_argument& e) { throw std::invalid_argument(plan_path + ": " + e.what()); }
        }();
        if (const auto* infeasible = std::get_if<stagecraft::Infeasible>(&result))
          throw std::runtime_error(plan_path + ": " + infeasible->reason);
        const auto& whatif = std::get<stagecraft::WhatIf>(result);
        stagecraft::format::write_text(
            "-", json ? stagecraft::format::whatif_json(whatif) : whatif_text(whatif, stagecraft::line_width()));
        return 0;
      });
}
