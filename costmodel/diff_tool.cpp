#include "costmodel/device_match.h"
#include "costmodel/diff.h"
#include "costmodel/format/calibration_json.h"
#include "costmodel/format/files.h"
#include "costmodel/format/json.h"
#include "costmodel/format/plan_comparison_json.h"
#include "costmodel/table.h"
#include "costmodel/tool.h"

int main(int argc, char** argv) {
  std::string graph_path;
  std::string topology_path;
  std::string first_path;
  std::string second_path;
  std::string calibration_path;
  bool accept_other_device = false;
  bool json = false;
  return stagecraft::run_tool(
      {"diff",
       "Compares two plans for one graph and topology: where they differ, both predictions, and the probability that "
       "the first is faster.",
       "stagecraft diff graph.json topology.json plan.json other-plan.json"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("GRAPH", graph_path, "graph.json; - is standard input")->required();
        app.add_option("TOPOLOGY", topology_path, "topology.json")->required();
        app.add_option("FIRST", first_path, "plan.json")->required();
        app.add_option("SECOND", second_path, "another plan.json")->required();
        app.add_option("--calibration", calibration_path,
                       "calibration.json of stagecraft calibrate: factors from measured runs");
        app.add_flag("--json", json, "a stagecraft.diff document instead of text");
        app.add_flag("--accept-other-device", accept_other_device,
                     "predict even if the graph was measured on another kind of device");
      },
      [&] {
        auto graph = stagecraft::format::read_graph(graph_path);
        const auto topology = stagecraft::format::read_topology(topology_path);
        const auto first = stagecraft::format::read_plan(first_path);
        const auto second = stagecraft::format::read_plan(second_path);
        std::optional<stagecraft::Calibration> calibration;
        if (!calibration_path.empty()) calibration = stagecraft::format::read_calibration(calibration_path);
        try {
          stagecraft::check_has_times(graph);
          (void)stagecraft::accepted_differences(graph, topology, accept_other_device);
        } catch (const std::invalid_argument& e) { throw std::invalid_argument(graph_path + ": " + e.what()); }
        for (const bool is_second : {false, true}) {
          try {
            validate(is_second ? second : first, graph, topology);
          } catch (const std::invalid_argument& e) {
            throw std::invalid_argument((is_second ? second_path : first_path) + ": " + e.what());
          }
        }
        const auto result = stagecraft::compare_plans(graph, topology, first, second, calibration);
        if (const auto* infeasible = std::get_if<stagecraft::Infeasible>(&result))
          throw std::runtime_error(infeasible->reason);
        const auto& comparison = std::get<stagecraft::PlanComparison>(result);
        stagecraft::format::write_text(
            "-", json ? stagecraft::format::plan_comparison_json(comparison)
                      : plan_comparison_text(comparison, first_path, second_path, stagecraft::line_width()));
        return 0;
      });
}
