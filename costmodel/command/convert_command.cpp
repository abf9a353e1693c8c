#include "costmodel/command/convert_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/index.h"
#include "costmodel/interchange/convert/stage_modules.h"
#include "costmodel/interchange/pipedream.h"
#include "costmodel/interchange/pipedream_conf.h"
#include "costmodel/text/units_text.h"

namespace {

using stagecraft::Graph;

constexpr const char* kExample =
    "stagecraft convert plan.json --model graph.txt -o vgg16\n"
    "  stagecraft convert plan.json --model model.pt2 -o stages\n"
    "  stagecraft convert partitioned.txt --replicas 15,1 -o vgg16\n"
    "  stagecraft convert plan.json --model graph.txt --layer BatchRNN=my_layers:BatchRNN --force -o deepspeech";

/// The first bytes of a document, which identify it.
constexpr std::size_t kHeadBytes = 256;

/// The command line.
struct ConvertRequest {
  std::string plan;
  std::string model;
  std::vector<int> replicas;
  std::vector<std::string> layers;
  std::string arch;
  std::string output;
  bool force = false;
};

/// A model in stages, and the ranks of each stage.
struct Parted {
  Graph graph;
  std::vector<int> stage_of_layer;
  std::vector<std::vector<int>> ranks;
};

bool is_document(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != text.npos && text[first] == '{';
}

Graph parse_model(const std::string& text, const std::string& file) {
  if (text.starts_with("PK")) {
    throw stagecraft::FormatError(file +
                                  ": is an archive, expected graph.json or PipeDream's graph.txt; an archive is " +
                                  "converted by a plan.json");
  }
  return is_document(text) ? stagecraft::format::parse_graph(text, file)
                           : stagecraft::interchange::parse_pipedream(text, file);
}

std::vector<std::vector<int>> ranks_of_stages(const stagecraft::Plan& plan) {
  const stagecraft::BoundPlan bound(plan);
  std::vector<std::vector<int>> out;
  for (int s = 0; s < bound.stages(); ++s) out.push_back(bound.ranks_of(s));
  return out;
}

Parted part_by_plan(const ConvertRequest& request, const stagecraft::Plan& plan) {
  if (request.model.empty()) {
    throw CLI::ValidationError(request.plan, "is a plan; use --model GRAPH to name its graph");
  }
  Parted out;
  out.graph = parse_model(stagecraft::format::read_text(request.model), request.model);
  try {
    out.stage_of_layer = stagecraft::interchange::stages_of(out.graph, plan);
  } catch (const std::invalid_argument& e) {
    throw stagecraft::InputError(stagecraft::kind_of(e), request.plan + ": " + e.what());
  }
  out.ranks = ranks_of_stages(plan);
  return out;
}

Parted part_by_stage_ids(const ConvertRequest& request, const std::string& text) {
  Parted out;
  const stagecraft::Graph parted = parse_model(text, request.plan);
  out.graph = request.model.empty() ? parted : parse_model(stagecraft::format::read_text(request.model), request.model);
  try {
    out.stage_of_layer = stagecraft::interchange::stages_of(parted);
    if (!request.model.empty()) {
      stagecraft::Plan plan;
      for (std::size_t i = 0; i < parted.layers.size(); ++i) {
        const int stage = out.stage_of_layer[i];
        if (stage < 0) continue;
        plan.stages.resize(std::max(plan.stages.size(), stagecraft::to_index(stage) + 1));
        plan.stages[stagecraft::to_index(stage)].layers.push_back(parted.layers[i].id);
      }
      out.stage_of_layer = stagecraft::interchange::stages_of(out.graph, plan);
    }
  } catch (const std::invalid_argument& e) {
    throw stagecraft::InputError(stagecraft::kind_of(e), request.plan + ": " + e.what());
  }
  const int stages = *std::max_element(out.stage_of_layer.begin(), out.stage_of_layer.end()) + 1;
  std::vector<int> replicas = request.replicas;
  if (replicas.empty()) replicas.assign(stagecraft::to_index(stages), 1);
  if (replicas.size() != stagecraft::to_index(stages)) {
    throw std::invalid_argument(fmt::format("--replicas: found {}, {} has {}",
                                            stagecraft::count_text(replicas.size(), "number"), request.plan,
                                            stagecraft::count_text(stages, "stage")));
  }
  int next = 0;
  for (const int count : replicas) {
    std::vector<int>& ranks = out.ranks.emplace_back();
    for (int i = 0; i < count; ++i) ranks.push_back(next++);
  }
  return out;
}

/// PipeDream's configurations, file name -> text.
std::map<std::string, std::string> configurations(const std::vector<std::vector<int>>& ranks) {
  const stagecraft::interchange::PipedreamConfs confs = stagecraft::interchange::pipedream_confs(ranks);
  return {{"dp_conf.json", stagecraft::interchange::pipedream_conf_text(confs.data_parallel)},
          {"mp_conf.json", stagecraft::interchange::pipedream_conf_text(confs.model_parallel)},
          {"hybrid_conf.json", stagecraft::interchange::pipedream_conf_text(confs.hybrid)}};
}

stagecraft::interchange::OwnKinds own_kinds(const std::vector<std::string>& layers) {
  stagecraft::interchange::OwnKinds out;
  for (const std::string& layer : layers) {
    const std::size_t equals = layer.find('=');
    if (equals == layer.npos || equals == 0) {
      throw CLI::ValidationError("--layer", "found \"" + layer + "\", expected KIND=MODULE:CLASS");
    }
    if (!out.emplace(layer.substr(0, equals), layer.substr(equals + 1)).second) {
      throw CLI::ValidationError("--layer", "kind \"" + layer.substr(0, equals) + "\" appears twice");
    }
  }
  return out;
}

void declare(CLI::App& app, ConvertRequest& request) {
  app.add_option("PLAN", request.plan, "plan.json, or graph.txt with a stage_id per layer; - is standard input")
      ->required();
  app.add_option("--model", request.model,
                 "graph.json, graph.txt or model.pt2 (default: PLAN if it is a graph, else the archive that the plan "
                 "names)")
      ->type_name("FILE");
  app.add_option("--replicas", request.replicas, "replicas per stage if PLAN is a graph (default: 1)")
      ->delimiter(',')
      ->transform(stagecraft::integer(1, 1 << 20))
      ->type_name("COUNT ...");
  app.add_option("--layer", request.layers,
                 "class for a layer kind, constructed from the arguments in the graph's parentheses; repeatable")
      ->type_name("KIND=MODULE:CLASS");
  app.add_option("--arch", request.arch, "name of the model in the package (default: the graph's)");
  app.add_flag("--force", request.force, "overwrite a package that an earlier conversion wrote");
  app.add_option("-o,--output", request.output, "output directory")->required()->type_name("DIR");
  app.callback([&request] { (void)own_kinds(request.layers); });
}

/// Whether a file is from an earlier conversion.
bool is_written_here(const std::string& name, const std::string& old) {
  return name == "dp_conf.json" || name == "mp_conf.json" || name == "hybrid_conf.json" ||
         (name.ends_with(".py") && old.starts_with(stagecraft::interchange::kPackageHeader)) ||
         (name.starts_with("stage") && name.ends_with(".pt2") && old.starts_with("PK"));
}

stagecraft::format::MayDelete may_delete(const ConvertRequest& request) {
  return request.force ? stagecraft::format::MayDelete(is_written_here) : stagecraft::format::MayDelete();
}

/// Writes the package with its configurations and prints the inputs and outputs of each stage.
void write(const ConvertRequest& request, const stagecraft::interchange::PythonPackage& package,
           const std::vector<std::vector<int>>& ranks,
           const std::map<std::string, stagecraft::format::WriteFile>& archives) {
  std::map<std::string, std::string> files = stagecraft::interchange::package_files(package);
  const std::map<std::string, std::string> confs = configurations(ranks);
  files.insert(confs.begin(), confs.end());
  stagecraft::format::write_folder(request.output, files, may_delete(request), archives);
  for (std::size_t s = 0; s < package.stages.size(); ++s) {
    fmt::print(stderr, "stage {}: {} -> {}\n", s, fmt::join(package.stages[s].inputs, ", "),
               fmt::join(package.stages[s].outputs, ", "));
  }
}

void convert_archive(const ConvertRequest& request, const stagecraft::Plan& plan, const std::string& model,
                     const stagecraft::interchange::ArchiveStager& archive_stages) {
  if (!archive_stages) {
    throw stagecraft::InputError(stagecraft::ErrorKind::NotInBuild,
                                 model +
                                     ": is an archive, and this program was built without LibTorch; build with "
                                     "-DSTAGECRAFT_WITH_TORCH=ON");
  }
  if (!request.layers.empty()) {
    throw CLI::ValidationError("--layer", model + " is an archive, which contains its layers' code");
  }
  stagecraft::interchange::ArchiveStages stages;
  try {
    stages = archive_stages(plan, model);
  } catch (const std::invalid_argument& e) {
    throw stagecraft::InputError(stagecraft::kind_of(e), request.plan + ": " + e.what());
  }
  if (!request.arch.empty()) stages.package.arch = request.arch;
  write(request, stages.package, ranks_of_stages(plan), stages.archives);
}

void convert_graph(const ConvertRequest& request, Parted parted) {
  if (!request.arch.empty()) parted.graph.name = request.arch;
  const std::string place = request.model.empty() ? request.plan : request.model;
  stagecraft::interchange::PythonPackage package;
  try {
    package = stagecraft::interchange::package_of(parted.graph, parted.stage_of_layer, own_kinds(request.layers));
  } catch (const std::invalid_argument& e) {
    throw stagecraft::InputError(stagecraft::kind_of(e), place + ": " + e.what());
  }
  write(request, package, parted.ranks, {});
}

int convert(const ConvertRequest& request, const stagecraft::interchange::ArchiveStager& archive_stages) {
  stagecraft::format::check_can_write_folder(request.output, may_delete(request));
  const std::string text = stagecraft::format::read_text(request.plan);
  const bool by_plan = is_document(text) && text.substr(0, kHeadBytes).find("\"stagecraft.graph\"") == text.npos;
  if (!by_plan) {
    convert_graph(request, part_by_stage_ids(request, text));
    return 0;
  }
  if (!request.replicas.empty()) {
    throw CLI::ValidationError("--replicas", request.plan + " is a plan, which contains them");
  }
  const stagecraft::Plan plan = stagecraft::format::parse_plan(text, request.plan);
  const std::string model = request.model.empty() ? plan.model : request.model;
  if (stagecraft::interchange::is_archive(model)) {
    convert_archive(request, plan, model, archive_stages);
  } else {
    convert_graph(request, part_by_plan(request, plan));
  }
  return 0;
}

}  // namespace

int stagecraft::run_convert_command(int argc, char** argv,
                                    const stagecraft::interchange::ArchiveStager& archive_stages) {
  ConvertRequest request;
  return stagecraft::run_tool(
      {"convert",
       "Writes a profiled or exported model as a Python package: one PyTorch module per stage, the whole model, and "
       "PipeDream's configurations. Known layer kinds: " +
           fmt::format("{}", fmt::join(stagecraft::interchange::known_kinds(), ", ")) + ".",
       kExample},
      argc, argv, [&](CLI::App& app) { declare(app, request); }, [&] { return convert(request, archive_stages); });
}
