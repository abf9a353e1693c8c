#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>

#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/project/process.h"
#include "costmodel/report/report.h"
#include "costmodel/text/progress.h"

namespace {

namespace fs = std::filesystem;

/// Draws the picture in the file `svg` as the file `png`, twice as large for sharp text, on white.
void write_png(const std::string& svg, const std::string& png) {
  const std::string temporary = png + ".partial";
  const int status = stagecraft::project::run_program(
      {"rsvg-convert", "--zoom", "2", "--background-color", "white", "--output", temporary, svg},
      "cannot run rsvg-convert; install the package librsvg2-bin, or leave out --png");
  if (status == 0) return fs::rename(temporary, png);
  fs::remove(temporary);
  throw stagecraft::DeviceError(svg + ": rsvg-convert ended with status " + std::to_string(status));
}

using Pictures = std::vector<const stagecraft::report::Picture*>;

/// The pictures of a report with these names, or all if there are none. Throws InputError for a name that no picture
/// has.
Pictures chosen_pictures(const std::vector<stagecraft::report::Section>& sections,
                         const std::vector<std::string>& names) {
  Pictures pictures;
  std::vector<std::string> known;
  for (const auto& section : sections) {
    for (const auto& picture : section.pictures) {
      known.push_back(picture.name);
      if (names.empty() || std::ranges::find(names, picture.name) != names.end()) pictures.push_back(&picture);
    }
  }
  for (const std::string& name : names) {
    if (std::ranges::find(known, name) == known.end()) {
      throw stagecraft::InputError(stagecraft::ErrorKind::UnknownName,
                                   "--picture: " + stagecraft::unknown_name("picture", name, known));
    }
  }
  return pictures;
}

/// Writes pictures to `folder`.
void write_pictures(const std::string& folder, const std::vector<std::string>& inputs, const Pictures& pictures,
                    bool png, bool force, const std::function<void(const std::string&)>& progress) {
  std::vector<stagecraft::format::OutputFile> outputs;
  for (const stagecraft::report::Picture* picture : pictures) {
    outputs.push_back({picture->name + ".svg", "SVG picture"});
    if (png) outputs.push_back({picture->name + ".png", "PNG picture"});
  }
  stagecraft::format::check_outputs_in(folder, inputs, outputs, force);
  fs::create_directories(folder);
  for (const stagecraft::report::Picture* picture : pictures) {
    const std::string path = (fs::path(folder) / picture->name).string();
    progress("writing " + path);
    stagecraft::format::write_text(path + ".svg", picture_file(*picture));
    if (png) write_png(path + ".svg", path + ".png");
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> files;
  std::string output = "-";
  std::string pictures;
  std::vector<std::string> names;
  bool png = false;
  bool force = false;
  return stagecraft::run_tool(
      {"report",
       "Writes one HTML page about a model, its plans, predictions and runs: a summary, plans to choose from, "
       "timelines, where the time goes, memory, layers, links. The page needs no network.",
       "stagecraft report graph.json topology.json plan.json prediction.json measured.json -o report.html\n"
       "  stagecraft report graph.json topology.json plan.json plans.json -o report.html\n"
       "  stagecraft report prediction.json -o report.html --pictures pictures --png"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option(
               "FILES", files,
               "graph, topology, plans, lists of plans (plan --top or --front with --json), predictions, measured "
               "runs, comparisons (compare --json), validation; in any order; - is standard input")
            ->required();
        app.add_option("-o,--output", output, "HTML page; - is standard output")
            ->type_name("FILE")
            ->capture_default_str();
        CLI::Option* const folder =
            app.add_option("--pictures", pictures, "folder for each picture as an SVG file")->type_name("FOLDER");
        app.add_option("--picture", names, "with --pictures: only the pictures of these names, such as gantt,graph")
            ->delimiter(',')
            ->allow_extra_args(false)
            ->type_name("NAME,...")
            ->needs(folder);
        app.add_flag("--png", png,
                     "with --pictures: PNG files too, drawn by rsvg-convert from the package librsvg2-bin")
            ->needs(folder);
        stagecraft::add_force_option(app, force);
      },
      [&] {
        stagecraft::format::check_outputs(files, {{output, "HTML report"}}, force);
        if (!pictures.empty()) stagecraft::format::check_can_write_in(pictures);
        stagecraft::report::ReportDocuments documents;
        stagecraft::StepProgress preparing("report");
        for (const std::string& file : files) {
          preparing.tell("reading " + file);
          add_document(documents, stagecraft::format::read_text(file), file == "-" ? "standard input" : file);
        }
        const auto notes = complete(documents, preparing.teller());
        preparing.end();
        for (const std::string& note : notes) std::cerr << "stagecraft-report: note: " << note << "\n";
        stagecraft::StepProgress drawing("report");
        drawing.tell("drawing");
        const auto parts = sections(documents);
        if (!pictures.empty())
          write_pictures(pictures, files, chosen_pictures(parts, names), png, force, drawing.teller());
        drawing.end();
        stagecraft::format::write_text(output, report_page(documents, parts, stagecraft::report::made_today()));
        return 0;
      });
}
