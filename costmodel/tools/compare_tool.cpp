#include "costmodel/accuracy/compare.h"
#include "costmodel/command/tool.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/json.h"
#include "costmodel/format/results/comparison_json.h"

int main(int argc, char** argv) {
  std::string prediction_path;
  std::string measurement_path;
  std::size_t skip = 2;
  bool json = false;
  return stagecraft::run_tool(
      {"compare",
       "Compares a prediction with a measured run: step, actions of each stage, bubble and memory of each rank.",
       "stagecraft compare prediction.json measured.json"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("PREDICTION", prediction_path, "prediction.json of stagecraft predict")->required();
        app.add_option("MEASURED", measurement_path, "measured.json of stagecraft run")->required();
        app.add_option("--skip", skip, "number of measured steps to skip at the start")
            ->capture_default_str()
            ->transform(stagecraft::integer<std::size_t>(0));
        app.add_flag("--json", json, "a stagecraft.comparison document instead of a table");
      },
      [&] {
        const auto prediction = stagecraft::format::read_prediction(prediction_path);
        const auto measurement = stagecraft::format::read_measurement(measurement_path);
        const auto comparison = stagecraft::compare(prediction, measurement, skip);
        stagecraft::format::write_text(
            "-", json ? stagecraft::format::comparison_json(comparison) : comparison_text(comparison));
        return 0;
      });
}
