#include <filesystem>

#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/report/report.h"
#include "costmodel/tool.h"

int main(int argc, char** argv) {
  std::vector<std::string> files;
  std::string output = "-";
  std::string pictures;
  bool force = false;
  return stagecraft::run_tool(
      {"report",
       "Writes one HTML page about a model, its plans, predictions and runs: a summary, timelines, where the time "
       "goes, "
       "memory, layers, links. The page needs no network.",
       "stagecraft report graph.json topology.json plan.json prediction.json measured.json -o report.html\n"
       "  stagecraft report prediction.json -o report.html --pictures pictures"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option(
               "FILES", files,
               "graph, topology, plans, predictions, measured runs, comparisons (compare --json), validation; in "
               "any order; - is standard input")
            ->required();
        app.add_option("-o,--output", output, "HTML page; - is standard output")->capture_default_str();
        app.add_option("--pictures", pictures, "folder for each picture as an SVG file");
        stagecraft::add_force_option(app, force);
      },
      [&] {
        stagecraft::format::check_outputs(files, {{output, "HTML report"}}, force);
        if (!pictures.empty()) stagecraft::format::check_can_write_in(pictures);
        stagecraft::report::Documents documents;
        for (const std::string& file : files)
          add_document(documents, stagecraft::format::read_text(file), file == "-" ? "standard input" : file);
        for (const std::string& note : complete(documents)) std::cerr << "stagecraft-report: note: " << note << "\n";
        const auto parts = sections(documents);
        if (!pictures.empty()) {
          std::vector<stagecraft::format::OutputFile> outputs;
          for (const auto& section : parts) {
            for (const auto& picture : section.pictures) outputs.push_back({picture.name + ".svg", "SVG picture"});
          }
          stagecraft::format::check_outputs_in(pictures, files, outputs, force);
          std::filesystem::create_directories(pictures);
          for (const auto& section : parts) {
            for (const auto& picture : section.pictures)
              stagecraft::format::write_text((std::filesystem::path(pictures) / (picture.name + ".svg")).string(),
                                             picture_file(picture));
          }
        }
        stagecraft::format::write_text(output, report_page(documents, parts));
        return 0;
      });
}
