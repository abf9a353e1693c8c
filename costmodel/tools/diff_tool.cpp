#include "costmodel/analysis/diff.h"
#include "costmodel/command/tool.h"
#include "costmodel/command/tool_inputs.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/results/analysis_json.h"
#include "costmodel/text/progress.h"
#include "costmodel/text/table.h"

int main(int argc, char** argv) {
  stagecraft::ScenarioFiles files;
  std::string first_path;
  std::string second_path;
  bool json = false;
  return stagecraft::run_tool(
      {"diff",
       "Compares two plans for one graph and topology: where they differ, both predictions, and the probability that "
       "the first is faster.",
       "stagecraft diff graph.json topology.json plan.json other-plan.json"},
      argc, argv,
      [&](CLI::App& app) {
        add_scenario_files(app, files);
        app.add_option("FIRST", first_path, "plan.json")->required();
        app.add_option("SECOND", second_path, "another plan.json")->required();
        app.add_flag("--json", json, "a stagecraft.diff document instead of text");
        add_scenario_options(app, files);
      },
      [&] {
        const auto [graph, topology, calibration, other_device] = read_scenario("stagecraft-diff", files);
        stagecraft::warn_other_device("stagecraft-diff", other_device);
        const auto first = stagecraft::format::read_plan(first_path);
        const auto second = stagecraft::format::read_plan(second_path);
        for (const bool is_second : {false, true}) {
          stagecraft::within(is_second ? second_path : first_path, [&, &graph = graph, &topology = topology] {
            validate(is_second ? second : first, graph, topology);
          });
        }
        const auto comparison = [&, &graph = graph, &topology = topology, &calibration = calibration] {
          stagecraft::ShareProgress progress("predicting both plans");
          return stagecraft::answer_of(
              stagecraft::compare_plans(graph, topology, first, second, calibration, {.progress = progress.teller()}));
        }();
        stagecraft::format::write_text(
            "-", json ? stagecraft::format::plan_comparison_json(comparison)
                      : plan_comparison_text(comparison, first_path, second_path, stagecraft::output_screen()));
        return 0;
      });
}
