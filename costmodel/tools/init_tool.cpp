#include <fmt/format.h>

#include <filesystem>

#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/prediction/cards.h"
#include "costmodel/project/project.h"

namespace {

/// Refuses what stands where the project is to be written.
void check_absent(const std::string& path) {
  if (path != "-" && std::filesystem::exists(path))
    throw stagecraft::FormatError(stagecraft::ErrorKind::WouldOverwrite,
                                  path + ": already exists, so it is not replaced; use another name, or --force");
}

/// A path of the project, which is relative to the project file's folder.
std::string beside(const std::string& project, const std::string& path) {
  if (project == "-") return path;
  return (std::filesystem::path(project).parent_path() / path).string();
}

void check_model(const std::string& project, const std::string& model) {
  if (model.find_first_of("./") == std::string::npos) return;
  const std::string path = beside(project, model);
  if (!std::filesystem::exists(path))
    throw stagecraft::FormatError(stagecraft::ErrorKind::CannotRead, path + ": does not exist");
}

/// Refuses a topology and a card that do not exist. Says what a cluster of GPUs still needs.
void check_cluster(const std::string& project, const stagecraft::project::NewProject& wanted) {
  using stagecraft::usage;
  constexpr std::string_view kExample = "example:";
  if (!wanted.estimate.empty()) usage("--estimate", [&] { return stagecraft::find_card(wanted.estimate).name; });
  if (wanted.topology.empty() || wanted.topology == "this-machine") return;
  const std::string file =
      !wanted.topology.starts_with(kExample) ? beside(project, wanted.topology) : usage("--topology", [&] {
        return stagecraft::project::example_topology(wanted.topology.substr(kExample.size()));
      });
  const stagecraft::Device device = stagecraft::format::read_topology(file).device;
  const bool has_profile = wanted.model.ends_with(".json");
  if (device.kind != stagecraft::DeviceKind::Gpu || has_profile || !wanted.estimate.empty()) return;
  fmt::print(stderr,
             "stagecraft-init: note: the topology's devices are GPUs ({}): the profile must come from one (device = "
             "\"cuda\"), or give --estimate CARD\n",
             device.name);
}

}  // namespace

int main(int argc, char** argv) {
  std::string output = "stagecraft.toml";
  std::vector<std::string> from;
  stagecraft::project::NewProject wanted;
  bool force = false;
  return stagecraft::run_tool(
      {"init",
       "Writes a project file with comments: model, data, cluster, limits, training. stagecraft auto runs the project.",
       "stagecraft init --from gpt layers=4 width=256 heads=4 --devices 2\n"
       "  stagecraft init gpt.toml --from model.pt2 --data tensors:train.safetensors\n"
       "  stagecraft init --from resnet50 --topology example:dgx-h100 --estimate H100-SXM"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("FILE", output, "the project file; - is standard output")->capture_default_str();
        app.add_option("--from", from,
                       "built-in model with its options KEY=VALUE, model file, or graph.json (default: convnet)")
            ->type_name("MODEL ...");
        app.add_option("--data", wanted.data, "data source (default: fashion-mnist for convnet, else synthetic)");
        app.add_option("--topology", wanted.topology,
                       "this-machine (default), a topology file, or example:NAME; with the last two, nothing is run");
        app.add_option("--devices", wanted.devices, "number of processes, or of GPUs, of this machine")
            ->capture_default_str()
            ->transform(stagecraft::integer<std::int64_t>(1));
        app.add_option("--estimate", wanted.estimate,
                       "with --topology: the card of its GPUs, see stagecraft estimate --list");
        app.add_flag("--force", force, "replace the file if it exists");
      },
      [&] {
        if (!from.empty()) {
          wanted.model = from.front();
          wanted.options.assign(from.begin() + 1, from.end());
        }
        if (const std::string stem = std::filesystem::path(output).stem().string(); output != "-")
          wanted.folder = stem + "-out";
        const std::string text =
            stagecraft::usage("--from", [&] { return project_text(stagecraft::project::new_project(wanted)); });
        const std::string shown = output == "-" ? "standard output" : output;
        stagecraft::usage("--from", [&] {
          try {
            return stagecraft::project::parse_project(text, shown);
          } catch (const stagecraft::FormatError& e) { throw stagecraft::InputError(stagecraft::kind_of(e), e.what()); }
        });
        if (!force) check_absent(output);
        check_model(output, wanted.model);
        check_cluster(output, wanted);
        stagecraft::format::write_text(output, text);
        if (output != "-") {
          fmt::print(stderr, "wrote {}; review it, then run: stagecraft auto{}\n", output,
                     output == "stagecraft.toml" ? "" : " " + output);
        }
        return 0;
      });
}
