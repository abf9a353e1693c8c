#include <iostream>
#include <variant>

#include "costmodel/command/tool.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/interchange/foreign.h"

namespace {

std::string document(const stagecraft::Graph& graph) { return stagecraft::format::graph_json(graph); }
std::string document(const stagecraft::Topology& topology) { return stagecraft::format::topology_json(topology); }

/// Says on stderr what a topology has that was not measured, and which curves are not as they were.
void tell_notes(const std::variant<stagecraft::Graph, stagecraft::Topology>& result) {
  const auto* topology = std::get_if<stagecraft::Topology>(&result);
  if (topology == nullptr) return;
  for (const auto& [name, text] : topology->provenance.notes) {
    const bool is_told = name.starts_with("fit of ") || name.starts_with("latency of ") ||
                         name.starts_with("link of ") || name.starts_with("left out");
    if (is_told) std::cerr << "note: " << name << ": " << text << "\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string format;
  std::vector<std::string> inputs;
  std::string measured;
  std::string units;
  std::string output = "-";
  bool force = false;
  return stagecraft::run_tool(
      {"import",
       "Converts another program's files to a graph or topology. Formats: " +
           stagecraft::interchange::format_list(stagecraft::interchange::foreign_formats()) + ".",
       "stagecraft import pipedream graph.txt -o graph.json\n"
       "  stagecraft import dnn-partitioning bert24.json --units fixed -o graph.json\n"
       "  stagecraft import nccl-tests all_reduce.txt sendrecv.txt -o measured.json\n"
       "  stagecraft import nccl-topology dump.xml --measured measured.json -o topology.json"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("FORMAT", format, "format of FILE")->required();
        app.add_option("FILE", inputs, "input file; - is standard input")->required();
        app.add_option("--measured", measured,
                       "measured topology; its links replace those of levels with the same "
                       "name")
            ->type_name("FILE");
        app.add_option(
               "--units", units,
               "of dnn-partitioning and piper: published reads all numbers in the units that the format states; fixed "
               "detects and corrects times in another unit, and reports them (default: published)")
            ->check(stagecraft::one_of("units", {"published", "fixed"}));
        app.add_option("-o,--output", output, "output file; - is standard output")
            ->type_name("FILE")
            ->capture_default_str();
        stagecraft::add_force_option(app, force);
      },
      [&] {
        const stagecraft::interchange::ForeignFormat& foreign = *stagecraft::usage("FORMAT", [&] {
          return &stagecraft::interchange::find_format(stagecraft::interchange::foreign_formats(), format);
        });
        std::vector<std::string> read = inputs;
        read.push_back(measured);
        stagecraft::format::check_outputs(read, {{output, ""}}, force);
        std::vector<stagecraft::interchange::SourceFile> files;
        for (const std::string& input : inputs) files.push_back({stagecraft::format::read_text(input), input});
        if (!units.empty() && !foreign.read_units)
          throw CLI::ValidationError("--units", "only valid with dnn-partitioning and piper");
        auto result = units.empty() ? foreign.read(files)
                                    : std::variant<stagecraft::Graph, stagecraft::Topology>(
                                          foreign.read_units(files, stagecraft::interchange::units_by_name(units)));
        if (foreign.read_units)
          std::cerr << "note: " << std::get<stagecraft::Graph>(result).provenance.notes.at("units") << "\n";
        tell_notes(result);
        if (!measured.empty()) {
          auto* const topology = std::get_if<stagecraft::Topology>(&result);
          if (topology == nullptr)
            throw CLI::ValidationError("--measured", "only valid with a topology, " + format + " is a graph");
          *topology = stagecraft::with_measured(*topology, stagecraft::format::read_topology(measured));
        }
        const std::string text = std::visit(
            [](auto& value) {
              stagecraft::sign(value.provenance);
              return document(value);
            },
            result);
        stagecraft::format::check_outputs(read, {{output, stagecraft::format::text_kind(text)}}, force);
        stagecraft::format::write_text(output, text);
        return 0;
      });
}
