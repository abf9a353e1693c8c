#include "costmodel/explain.h"

#include <fmt/format.h>

#include "costmodel/device_match.h"
#include "costmodel/format/calibration_json.h"
#include "costmodel/format/explanation_json.h"
#include "costmodel/format/files.h"
#include "costmodel/format/json.h"
#include "costmodel/progress.h"
#include "costmodel/table.h"
#include "costmodel/tool.h"

int main(int argc, char** argv) {
  std::string graph_path;
  std::string topology_path;
  std::string plan_path;
  std::string calibration_path;
  bool accept_other_device = false;
  bool no_moves = false;
  bool json = false;
  return stagecraft::run_tool(
      {"explain",
       "Explains a plan's predicted step: where its time goes, the critical path, the bottleneck, the best single move "
       "of a layer to an adjacent stage, and how much memory is left.",
       "stagecraft explain graph.json topology.json plan.json\n  stagecraft explain graph.json topology.json plan.json "
       "--json"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("GRAPH", graph_path, "graph.json; - is standard input")->required();
        app.add_option("TOPOLOGY", topology_path, "topology.json")->required();
        app.add_option("PLAN", plan_path, "plan.json")->required();
        app.add_option("--calibration", calibration_path,
                       "calibration.json of stagecraft calibrate: factors from measured runs");
        app.add_flag("--no-moves", no_moves, "do not look for the best move");
        app.add_flag("--json", json, "a stagecraft.explanation document instead of text");
        app.add_flag("--accept-other-device", accept_other_device,
                     "explain even if the graph was measured on another kind of device");
      },
      [&] {
        auto graph = stagecraft::format::read_graph(graph_path);
        const auto topology = stagecraft::format::read_topology(topology_path);
        const stagecraft::BoundPlan plan(stagecraft::format::read_plan(plan_path));
        stagecraft::ExplainOptions options;
        options.moves = !no_moves;
        if (!calibration_path.empty()) options.calibration = stagecraft::format::read_calibration(calibration_path);
        try {
          stagecraft::check_has_times(graph);
          (void)stagecraft::accepted_differences(graph, topology, accept_other_device);
        } catch (const std::invalid_argument& e) { throw std::invalid_argument(graph_path + ": " + e.what()); }
        auto result = [&] {
          stagecraft::ProgressLine line;
          options.predict.progress = [&line](double done) { line.show(fmt::format("evaluated {:.0f} %", done * 100)); };
          try {
            return stagecraft::explain(graph, topology, plan, options);
          } catch (const std::invalid_argument& e) { throw std::invalid_argument(plan_path + ": " + e.what()); }
        }();
        if (const auto* infeasible = std::get_if<stagecraft::Infeasible>(&result))
          throw std::runtime_error(plan_path + ": " + infeasible->reason);
        const auto& explanation = std::get<stagecraft::Explanation>(result);
        stagecraft::format::write_text("-", json ? stagecraft::format::explanation_json(explanation)
                                                 : explanation_text(explanation, stagecraft::line_width()));
        return 0;
      });
}
