#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <vector>

#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/interchange/foreign.h"
#include "costmodel/interchange/plan_formats.h"
#include "costmodel/interchange/rank_file.h"

namespace {

using stagecraft::interchange::PlanFormat;

/// Formats of other programs for graphs.
std::vector<stagecraft::interchange::ForeignFormat> graph_formats() {
  std::vector<stagecraft::interchange::ForeignFormat> out = stagecraft::interchange::foreign_formats();
  std::erase_if(out, [](const stagecraft::interchange::ForeignFormat& f) { return !f.write; });
  return out;
}

/// Formats that say where the ranks of a plan run.
constexpr const char* kRankFile = "rankfile";
constexpr const char* kHostList = "hosts";

bool places_ranks(const std::string& format) { return format == kRankFile || format == kHostList; }

/// The formats of graphs and of plans for --help.
std::string known_formats() {
  std::string out = stagecraft::interchange::format_list(graph_formats());
  for (const PlanFormat& format : stagecraft::interchange::plan_formats())
    out += ", " + format.name + " (" + format.what + ")";
  out += std::string(", ") + kRankFile + " (Open MPI's rank file), " + kHostList +
         " (a host list for stagecraft run --hosts and mpirun --hostfile)";
  return out;
}

/// The one called `name` among the formats of plans, or none.
const PlanFormat* find_plan_format(const std::string& name) {
  for (const PlanFormat& format : stagecraft::interchange::plan_formats()) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

/// The formats of plans that have `option`: "pipedream-conf".
std::string formats_with(const std::string& option) {
  std::string out;
  for (const PlanFormat& format : stagecraft::interchange::plan_formats()) {
    if (std::ranges::find(format.options, option) != format.options.end())
      out += (out.empty() ? "" : ", ") + format.name;
  }
  return out;
}

/// Throws if `option` is given but is not one of the format called `name`.
void check_option(const std::string& name, const std::string& option, bool given) {
  if (!given) return;
  const PlanFormat* const format = find_plan_format(name);
  if (format == nullptr || std::ranges::find(format->options, option) == format->options.end())
    throw CLI::ValidationError(option, "only valid with " + formats_with(option));
}

/// The command line.
struct ExportRequest {
  std::string format;
  std::string input;
  std::string output = "-";
  std::string kind;
  std::string graph;
  std::string hosts;
  std::optional<int> cores;
  bool force = false;
  stagecraft::interchange::PlanTextOptions options;
};

void check_usage(const ExportRequest& request) {
  std::vector<std::string> names;
  for (const auto& format : graph_formats()) names.push_back(format.name);
  names.insert(names.end(), {kHostList, kRankFile});
  if (std::find(names.begin(), names.end(), request.format) == names.end())
    stagecraft::usage("FORMAT", [&] { (void)stagecraft::interchange::plan_format(request.format, names); });
  check_option(request.format, "--transfers", request.options.transfers);
  check_option(request.format, "--depths", request.options.depths);
  check_option(request.format, "--graph", !request.graph.empty());
  if (request.cores.has_value() && request.format != kRankFile)
    throw CLI::ValidationError("--cores", std::string("only valid with ") + kRankFile);
  if (!request.hosts.empty() && !places_ranks(request.format))
    throw CLI::ValidationError("--hosts", std::string("only valid with ") + kRankFile + " and " + kHostList);
  if (request.hosts.empty() && places_ranks(request.format))
    throw CLI::ValidationError("--hosts", "is required for " + request.format);
  const PlanFormat* const format = find_plan_format(request.format);
  const std::vector<std::string> kinds = format == nullptr ? std::vector<std::string>{} : format->kinds;
  std::string known;
  for (const std::string& kind : kinds) known += (known.empty() ? "" : ", ") + kind;
  if (!request.kind.empty() && std::find(kinds.begin(), kinds.end(), request.kind) == kinds.end()) {
    throw CLI::ValidationError("--kind", known.empty() ? "format " + request.format + " has a single file"
                                                       : "found \"" + request.kind + "\", expected " + known);
  }
  if (request.kind.empty() && !kinds.empty() && request.output == "-") {
    throw CLI::ValidationError("--kind", "format " + request.format + " has several files: give one of " + known +
                                             ", or -o FOLDER for all of them");
  }
  if (request.kind == "graph" && request.graph.empty()) {
    throw CLI::ValidationError("--graph", "is required for --kind graph");
  }
}

void export_plan(ExportRequest& request, const PlanFormat& format) {
  const std::vector<std::string> inputs{request.input, request.graph};
  const bool folder = !format.kinds.empty() && request.kind.empty();
  if (folder) {
    stagecraft::format::check_can_write_in(request.output);
  } else {
    stagecraft::format::check_outputs(inputs, {{request.output, ""}}, request.force);
  }
  const stagecraft::BoundPlan plan(stagecraft::format::read_plan(request.input));
  if (!request.graph.empty()) request.options.graph = stagecraft::format::read_graph(request.graph);
  stagecraft::interchange::PlanTexts written;
  try {
    written = format.write(plan, request.options);
  } catch (const std::invalid_argument& e) {
    throw stagecraft::InputError(stagecraft::kind_of(e), request.input + ": " + e.what());
  }
  for (const std::string& warning : written.warnings) std::cerr << "stagecraft-export: note: " << warning << "\n";
  std::erase_if(written.texts, [&](const auto& text) { return !request.kind.empty() && text.kind != request.kind; });
  std::vector<stagecraft::format::OutputFile> files;
  for (const stagecraft::interchange::PlanText& text : written.texts)
    files.push_back({folder ? text.file : request.output, stagecraft::format::text_kind(text.text)});
  if (folder) {
    stagecraft::format::check_outputs_in(request.output, inputs, files, request.force);
    std::error_code error;
    std::filesystem::create_directories(request.output, error);
    if (error) throw stagecraft::FormatError(request.output + ": " + error.message());
  } else {
    stagecraft::format::check_outputs(inputs, files, request.force);
  }
  for (const stagecraft::interchange::PlanText& text : written.texts) {
    stagecraft::format::write_text(
        folder ? (std::filesystem::path(request.output) / text.file).string() : request.output, text.text);
  }
}

/// Writes where the ranks of a plan run.
void export_places(const ExportRequest& request) {
  const bool list = request.format == kHostList;
  stagecraft::format::check_outputs({request.input, request.hosts},
                                    {{request.output, list ? "host list" : "rank file"}}, request.force);
  const stagecraft::BoundPlan plan(stagecraft::format::read_plan(request.input));
  const auto hosts =
      stagecraft::interchange::parse_host_list(stagecraft::format::read_text(request.hosts), request.hosts);
  std::string text;
  try {
    text = list ? host_list(plan, hosts) : open_mpi_rank_file(plan, hosts, request.cores.value_or(1));
  } catch (const std::invalid_argument& e) {
    throw stagecraft::InputError(stagecraft::kind_of(e), request.input + ": " + e.what());
  }
  stagecraft::format::write_text(request.output, text);
}

}  // namespace

int main(int argc, char** argv) {
  ExportRequest request;
  return stagecraft::run_tool(
      {"export", "Converts a graph or plan to another program's format. Formats: " + known_formats() + ".",
       "stagecraft export pipedream graph.json -o graph.txt\n"
       "  stagecraft export actions plan.json -o schedule.csv\n"
       "  stagecraft export torch-pipelining plan.json -o folder && torchrun --nproc-per-node 2 folder/pipeline.py "
       "...\n"
       "  stagecraft export pipedream-conf plan.json --graph graph.json -o folder\n"
       "  stagecraft export deepspeed plan.json --kind python -o planned_pipeline.py\n"
       "  stagecraft export rankfile plan.json --hosts hosts.txt --cores 8 -o ranks.txt\n"
       "  pretrain_gpt.py --pipeline-model-parallel-layout \"$(stagecraft export megatron plan.json)\" ..."},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("FORMAT", request.format, "format to write")->required();
        app.add_option("FILE", request.input, "the graph or plan; - is standard input")->required();
        app.add_option("-o,--output", request.output,
                       "output file, - is standard output; or the folder, for a format with several files and without "
                       "--kind")
            ->type_name("FILE")
            ->capture_default_str();
        app.add_option("--kind", request.kind, "file to write, for a format with several");
        app.add_option("--graph", request.graph,
                       formats_with("--graph") + ": graph.json; also writes it with the plan's stages")
            ->type_name("FILE");
        app.add_flag(
            "--depths", request.options.depths,
            formats_with("--depths") + ": write the plan's warm-ups as stage_to_depth_map in the hybrid configuration");
        app.add_flag("--transfers", request.options.transfers,
                     formats_with("--transfers") + ": include sends, receives and reduces");
        app.add_option("--hosts", request.hosts,
                       "rankfile, hosts: the hosts of the plan's devices, one NAME [slots=N] per line: device 0 is the "
                       "first one of the first host")
            ->type_name("FILE");
        app.add_option("--cores", request.cores, "rankfile: cores of each device (default: 1)")
            ->transform(stagecraft::integer(1, 1 << 16, "the most of a device"));
        stagecraft::add_force_option(app, request.force);
        app.callback([&] { check_usage(request); });
      },
      [&] {
        if (places_ranks(request.format)) {
          export_places(request);
          return 0;
        }
        if (const PlanFormat* const format = find_plan_format(request.format)) {
          export_plan(request, *format);
          return 0;
        }
        stagecraft::format::check_outputs({request.input}, {{request.output, ""}}, request.force);
        const std::string text = stagecraft::interchange::find_format(graph_formats(), request.format)
                                     .write(stagecraft::format::read_graph(request.input));
        stagecraft::format::check_outputs({request.input}, {{request.output, stagecraft::format::text_kind(text)}},
                                          request.force);
        stagecraft::format::write_text(request.output, text);
        return 0;
      });
}
