#include "costmodel/analysis/explain.h"
#include "costmodel/errors.h"

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
        add_scenario_files_or_devices(app, files, plan_path);
        app.add_flag("--no-moves", no_moves, "do not look for the best move");
        app.add_flag("--json", json, "a stagecraft.explanation document instead of text");
        add_scenario_options(app, files);
      },
      [&] {
        const stagecraft::ScenarioInputs inputs = read_scenario("stagecraft-explain", files);
        stagecraft::warn_other_device("stagecraft-explain", inputs.other_device);
        const stagecraft::BoundPlan plan(stagecraft::format::read_plan(plan_path));
        stagecraft::ExplainOptions options;
        options.moves = !no_moves;
        options.calibration = inputs.calibration;
        auto result = stagecraft::within(plan_path, [&] {
          stagecraft::ShareProgress progress("explaining");
          options.predict.progress = progress.teller();
          return stagecraft::explain(inputs.graph, inputs.topology, plan, options);
        });
        const auto explanation = stagecraft::answer_of(std::move(result), plan_path + ": ");
        stagecraft::format::write_text("-", json ? stagecraft::format::explanation_json(explanation)
                                                 : explanation_text(explanation, stagecraft::output_screen()));
        return 0;
      });
}
