#include "costmodel/accuracy/validate.h"
#include "costmodel/errors.h"

#include "costmodel/command/tool.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/results/accuracy_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/interchange/pictures.h"
#include "costmodel/text/progress.h"
#include "costmodel/text/table.h"

int main(int argc, char** argv) {
  std::vector<std::string> files;
  std::size_t skip = 2;
  double noise = 0;
  std::string output;
  std::string picture;
  bool json = false;
  bool force = false;
  return stagecraft::run_tool(
      {"validate",
       "Scores predictions against measured runs: errors, order of the plans, regret of the predicted best, and how "
       "often "
       "the measurement lies inside the predicted interval; of all runs and by model, schedule and ranks.",
       "stagecraft validate a/prediction.json a/measured.json b/prediction.json b/measured.json --svg scatter.svg"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("FILES", files, "pairs: prediction.json of stagecraft predict, measured.json of stagecraft run")
            ->required();
        app.add_option("--skip", skip, "number of measured steps to skip at the start")
            ->capture_default_str()
            ->transform(stagecraft::integer<std::size_t>(0));
        app.add_option("--noise", noise,
                       "share by which measured times must differ for two plans to count in tau: 0.03 is 3 %, the "
                       "difference of repeated runs")
            ->capture_default_str()
            ->transform(stagecraft::number_from(0, 1));
        app.add_flag("--json", json, "print a stagecraft.validation document instead of tables");
        app.add_option("-o,--output", output, "a stagecraft.validation document")->type_name("FILE");
        app.add_option("--svg", picture, "a picture of predicted against measured step times")->type_name("FILE");
        stagecraft::add_force_option(app, force);
      },
      [&] {
        if (files.size() % 2 != 0) {
          throw CLI::ValidationError("FILES", std::to_string(files.size()) +
                                                  " files; expected pairs of a prediction and "
                                                  "a measurement");
        }
        stagecraft::format::check_outputs(files, {{output, "stagecraft.validation"}, {picture, "SVG picture"}}, force);
        std::vector<stagecraft::ValidatedRun> runs;
        stagecraft::ShareProgress progress("reading runs");
        for (std::size_t i = 0; i < files.size(); i += 2) {
          progress.tell(static_cast<double>(i) / static_cast<double>(files.size()));
          const auto prediction = stagecraft::format::read_prediction(files[i]);
          const auto measurement = stagecraft::format::read_measurement(files[i + 1]);
          try {
            runs.push_back(stagecraft::validated_run(files[i + 1], prediction, measurement, skip));
          } catch (const std::invalid_argument& e) {
            throw stagecraft::InputError(stagecraft::kind_of(e), files[i] + ", " + files[i + 1] + ": " + e.what());
          }
        }
        const auto validation = stagecraft::validated(std::move(runs), noise);
        progress.end();
        if (!picture.empty())
          stagecraft::format::write_text(picture, stagecraft::interchange::scatter_picture(validation));
        const std::string document = stagecraft::format::validation_json(validation);
        if (!output.empty()) stagecraft::format::write_text(output, document);
        stagecraft::format::write_text(
            "-", json ? document : stagecraft::validation_text(validation, stagecraft::output_screen()));
        return 0;
      });
}
