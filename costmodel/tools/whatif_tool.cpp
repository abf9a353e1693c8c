#include "costmodel/analysis/whatif.h"

#include <utility>

#include "costmodel/command/tool.h"
#include "costmodel/command/tool_inputs.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/results/analysis_json.h"
#include "costmodel/text/progress.h"
#include "costmodel/text/table.h"

int main(int argc, char** argv) {
  stagecraft::ScenarioFiles files;
  std::string plan_path;
  std::vector<std::string> changes;
  bool json = false;
  return stagecraft::run_tool(
      {"whatif", "Predicts a plan before and after changes to the model's times, the links, the devices or the plan.",
       "stagecraft whatif graph.json topology.json plan.json --set link.node.bandwidth=2x --set schedule=zb-h1\n  "
       "stagecraft whatif graph.json topology.json plan.json --set stage.1.compute=0.8x --json\n\n" +
           stagecraft::settings_text()},
      argc, argv,
      [&](CLI::App& app) {
        add_scenario_files_or_devices(app, files, plan_path);
        stagecraft::add_set_option(app, changes)->required();
        app.add_flag("--json", json, "a stagecraft.whatif document instead of a table");
        add_scenario_options(app, files);
      },
      [&] {
        stagecraft::ScenarioInputs inputs = read_scenario("stagecraft-whatif", files);
        stagecraft::warn_other_device("stagecraft-whatif", inputs.other_device);
        stagecraft::Scenario scenario{std::move(inputs.graph), std::move(inputs.topology),
                                      stagecraft::format::read_plan(plan_path)};
        static_cast<void>(stagecraft::with_settings(scenario, changes));
        auto result = stagecraft::within(plan_path, [&] {
          stagecraft::ShareProgress progress("predicting before and after");
          return stagecraft::what_if(scenario, changes, inputs.calibration, {.progress = progress.teller()},
                                     inputs.other_device);
        });
        const auto whatif = stagecraft::answer_of(std::move(result), plan_path + ": ");
        stagecraft::format::write_text(
            "-", json ? stagecraft::format::whatif_json(whatif) : whatif_text(whatif, stagecraft::output_screen()));
        return 0;
      });
}
