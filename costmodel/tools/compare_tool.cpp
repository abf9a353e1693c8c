#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "costmodel/accuracy/compare.h"
#include "costmodel/accuracy/step_change.h"
#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/results/accuracy_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/report/pictures.h"
#include "costmodel/text/table.h"

namespace {

using stagecraft::Measurement;
using stagecraft::Prediction;
using stagecraft::report::ShownStep;

using Either = std::variant<Prediction, Measurement>;

Either read_either(const std::string& path) {
  const std::string text = stagecraft::format::read_text(path);
  const std::string kind = stagecraft::format::text_kind(text);
  if (kind == "stagecraft.prediction") return stagecraft::format::parse_prediction(text, path);
  if (kind == "stagecraft.timeline") return stagecraft::format::parse_measurement(text, path);
  throw stagecraft::FormatError(stagecraft::ErrorKind::OtherDocument,
                                path + ": /format: found " +
                                    (kind.empty() ? "no document of stagecraft" : "\"" + kind + "\"") +
                                    ", expected \"stagecraft.prediction\" or \"stagecraft.timeline\"" +
                                    (kind == "stagecraft.plan" ? "; stagecraft diff compares plans" : ""));
}

std::optional<ShownStep> step_of(const Either& document, std::size_t skip) {
  if (const auto* prediction = std::get_if<Prediction>(&document)) return stagecraft::report::shown_step(*prediction);
  return stagecraft::report::shown_step(std::get<Measurement>(document), skip);
}

/// A step of each document as a timeline in text, or that it has no actions.
std::string gantts(const std::vector<std::pair<std::string, const Either*>>& documents, std::size_t skip) {
  std::vector<ShownStep> steps;
  std::string missing;
  for (const auto& [path, document] : documents) {
    std::optional<ShownStep> step = step_of(*document, skip);
    if (step) {
      step->title = path + ", " + step->title;
      steps.push_back(*step);
    } else {
      missing += "\n" + path + ": has no actions to draw\n";
    }
  }
  const stagecraft::Screen screen = stagecraft::output_screen();
  return "\n" + stagecraft::report::text_gantts(steps, screen.width, screen.colour) + missing;
}

}  // namespace

int main(int argc, char** argv) {
  std::string first_path;
  std::string second_path;
  std::size_t skip = 2;
  bool json = false;
  bool gantt = false;
  return stagecraft::run_tool(
      {"compare",
       "Compares a prediction with a measured run, two predictions, or two measured runs: step, actions of each stage, "
       "idle time, memory. To find out which of two plans is faster, and how likely that is, use stagecraft diff.",
       "stagecraft compare prediction.json measured.json\n"
       "  stagecraft compare prediction.json measured.json --gantt\n"
       "  stagecraft compare prediction.json other-prediction.json"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("FIRST", first_path,
                       "prediction.json of stagecraft predict, or measured.json of stagecraft run; - is standard input")
            ->required();
        app.add_option("SECOND", second_path,
                       "the same; two predictions, or two runs, are shown as changes from FIRST to SECOND")
            ->required();
        app.add_option("--skip", skip, "number of measured steps to skip at the start")
            ->capture_default_str()
            ->transform(stagecraft::integer<std::size_t>(0));
        CLI::Option* const document =
            app.add_flag("--json", json,
                         "print a stagecraft.comparison document, or stagecraft.change for two predictions or two "
                         "runs, instead of a table");
        app.add_flag("--gantt", gantt,
                     "also print a step of each as a timeline in text, as wide as the terminal; of a run, the step "
                     "whose time is nearest to the median")
            ->excludes(document);
      },
      [&] {
        const auto first = read_either(first_path);
        const auto second = read_either(second_path);
        if (first.index() != second.index()) {
          const bool swapped = std::holds_alternative<Measurement>(first);
          const auto comparison = stagecraft::compare(std::get<Prediction>(swapped ? second : first),
                                                      std::get<Measurement>(swapped ? first : second), skip);
          const std::string drawn = !gantt    ? ""
                                    : swapped ? gantts({{second_path, &second}, {first_path, &first}}, skip)
                                              : gantts({{first_path, &first}, {second_path, &second}}, skip);
          stagecraft::format::write_text(
              "-", json ? stagecraft::format::comparison_json(comparison) : comparison_text(comparison) + drawn);
          return 0;
        }
        const stagecraft::StepChange change =
            std::holds_alternative<Prediction>(first)
                ? stagecraft::step_change(std::get<Prediction>(first), std::get<Prediction>(second))
                : stagecraft::step_change(std::get<Measurement>(first), std::get<Measurement>(second), skip);
        const std::string drawn = gantt ? gantts({{first_path, &first}, {second_path, &second}}, skip) : "";
        stagecraft::format::write_text(
            "-", json ? stagecraft::format::step_change_json(change)
                      : step_change_text(change, first_path, second_path, stagecraft::output_screen()) + drawn);
        return 0;
      });
}
