#include "costmodel/project/new_project.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/format/files/outputs.h"

namespace stagecraft::project {
namespace {

namespace fs = std::filesystem;

/// Where they are installed, and in the source tree, as seen from this program.
std::vector<fs::path> folders() {
  const fs::path program_folder = fs::read_symlink("/proc/self/exe").parent_path();
  return {program_folder / "../share/stagecraft/examples", program_folder / "../../../examples"};
}

/// The topologies of the first folder that exists.
std::vector<fs::path> files() {
  std::vector<fs::path> out;
  for (const fs::path& folder : folders()) {
    if (!fs::is_directory(folder)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".json" && format::file_kind(entry.path().string()) == "stagecraft.topology")
        out.push_back(entry.path().lexically_normal());
    }
    break;
  }
  std::ranges::sort(out);
  return out;
}

}  // namespace

Project new_project(const NewProject& wanted) {
  Project out;
  const std::string model = wanted.model.empty() ? "convnet" : wanted.model;
  const bool is_graph = model.ends_with(".json");
  const bool is_file = model.find_first_of("./") != std::string::npos;
  const bool here = wanted.topology.empty() || wanted.topology == "this-machine";
  if (model.ends_with(".py") || model.find(".py:") != std::string::npos) {
    throw std::invalid_argument(model + " is Python; export the model first: stagecraft export-model " + model +
                                (model.ends_with(".py") ? ":FUNCTION" : "") +
                                " ... -o model.pt2, then give --from model.pt2");
  }
  if (!wanted.estimate.empty() && here)
    throw std::invalid_argument("--estimate is for the GPUs of --topology, which is missing");
  auto& in_model = out.given["model"];
  in_model[is_graph ? "graph" : "name"] = model;
  if (!wanted.options.empty()) {
    if (is_file) throw std::invalid_argument("only a built-in model has options, not " + model);
    std::map<std::string, std::string> options;
    for (const std::string& option : wanted.options) {
      const std::size_t equals = option.find('=');
      if (equals == 0 || equals == std::string::npos || equals + 1 == option.size())
        throw std::invalid_argument("found \"" + option + "\", expected an option of the model such as layers=4");
      options[option.substr(0, equals)] = option.substr(equals + 1);
    }
    in_model["options"] = options;
  }
  const bool convnet = model == "convnet";
  if (!is_graph) {
    in_model["microbatch"] = std::int64_t{convnet ? 32 : 4};
    out.given["data"]["source"] = !wanted.data.empty() ? wanted.data
                                  : convnet            ? std::string("fashion-mnist")
                                                       : std::string("synthetic");
  }
  auto& cluster = out.given["cluster"];
  cluster["topology"] = here ? std::string("this-machine") : wanted.topology;
  if (here) cluster["devices"] = wanted.devices;
  if (!wanted.estimate.empty()) cluster["estimate"] = wanted.estimate;
  if (here) out.given["links"]["seconds"] = 8.0;
  if (!is_graph) out.given["profile"]["max_seconds"] = 12.0;
  out.given["plan"]["microbatches"] = std::int64_t{here ? 8 : 32};
  if (!is_graph) {
    auto& training = out.given["training"];
    training["optimizer"] = std::string("sgd");
    training["learning_rate"] = convnet ? 0.1 : 0.05;
    if (here) out.given["run"]["steps"] = std::int64_t{40};
  }
  out.given["output"]["folder"] = wanted.folder;
  return out;
}

std::vector<std::string> example_topologies() {
  std::vector<std::string> out;
  for (const fs::path& file : files()) out.push_back(file.stem().string());
  return out;
}

std::string example_topology(const std::string& name) {
  for (const fs::path& file : files()) {
    if (file.stem() == name) return file.string();
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("example", name, example_topologies()));
}

}  // namespace stagecraft::project
