#include "executor/intake/export/stage_package.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/interchange/convert/python_package.h"
#include "executor/intake/export/stage_archive.h"
#include "executor/intake/graph/layers/graph_model.h"
#include "executor/intake/pt2/pt2_graph.h"
#include "executor/intake/torchscript/script_module.h"
#include "executor/model/model.h"

namespace stagecraft::intake {
namespace {

constexpr const char* kExported = R"python(import pathlib
import warnings

import torch

class ExportedStage(torch.nn.Module):
    """A stage in a file of torch.export: FILE, next to this one. Parameters and buffers have the model's names.

    It computes as the model did when it was exported, for training or for evaluation.
    """

    FILE = ""
    INPUTS = ()
    OUTPUTS = ()
    TIED = ()  # names of one parameter

    def __init__(self):
        super().__init__()
        with warnings.catch_warnings():
            # torch reads weights into read-only memory; they are copied below.
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            program = torch.export.load(pathlib.Path(__file__).with_name(self.FILE))
        graph = program.module()
        for parameter in graph.parameters():
            parameter.data = parameter.data.clone()
        copies = {}  # one for all names of a buffer
        for buffer in graph.buffers():
            place = (buffer.data_ptr(), buffer.dtype, buffer.shape, buffer.stride())
            if place not in copies:
                copies[place] = buffer.data.clone()
            buffer.data = copies[place]
        for first, *others in self.TIED:
            for other in others:
                path, _, name = other.rpartition(".")
                setattr(graph.get_submodule(path), name, graph.get_parameter(first))
        # Both share their children: the graph sees what to() and load_state_dict() change here.
        self._parameters, self._buffers, self._modules = graph._parameters, graph._buffers, graph._modules
        self._non_persistent_buffers_set = graph._non_persistent_buffers_set
        object.__setattr__(self, "_graph", graph)

    def forward(self, *values):
        results = self._graph(*values)
        return results[0] if len(results) == 1 else results

    def train(self, mode=True):
        if not mode:
            raise NotImplementedError(f"{self.FILE} computes as it was exported; there is no eval()")
        return super().train()
)python";

std::vector<std::string> quoted(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) out.push_back(interchange::python_string(name));
  return out;
}

/// Inputs of one conversion.
struct Conversion {
  Pt2Archive archive;
  OperatorGraph graph;
  std::vector<StageGraph> stages;
  std::unique_ptr<StageArchives> archives;
};

std::vector<std::string> names_of(const OperatorGraph& graph, const std::vector<int>& values) {
  std::vector<std::string> out;
  for (const int v : values) out.push_back(graph.values[to_index(v)].name);
  return out;
}

/// Parameters that share one tensor, with the stages that hold them.
std::vector<std::vector<interchange::StageParameter>> tied_parameters(const Conversion& source) {
  std::vector<std::vector<interchange::StageParameter>> out;
  std::vector<StoredTensor> tensors;
  for (const ProgramInput& input : source.archive.program.inputs) {
    if (input.kind != ProgramInput::Kind::Parameter) continue;
    const StoredTensor& tensor = source.archive.tensors.at(input.name);
    const auto group = to_index(std::ranges::find(tensors, tensor) - tensors.begin());
    if (group == tensors.size()) {
      tensors.push_back(tensor);
      out.emplace_back();
    }
    for (std::size_t s = 0; s < source.stages.size(); ++s) {
      const std::vector<int>& stored = source.stages[s].tensors;
      if (std::ranges::find(stored, input.value.index) != stored.end()) out[group].push_back({to_int(s), input.name});
    }
  }
  std::erase_if(out, [](const auto& group) { return group.size() < 2; });
  return out;
}

std::string stage_text(const interchange::StageModule& stage, std::size_t number,
                       const std::vector<std::vector<interchange::StageParameter>>& tied) {
  std::vector<std::string> groups;
  for (const auto& group : tied) {
    std::vector<std::string> names;
    for (const interchange::StageParameter& parameter : group) {
      if (parameter.stage == to_int(number)) names.push_back(parameter.name);
    }
    if (names.size() > 1) groups.push_back(interchange::python_tuple(quoted(names)));
  }
  return fmt::format(
      "from .exported import ExportedStage\n\n\n"
      "class Stage{0}(ExportedStage):\n"
      "    FILE = \"stage{0}.pt2\"\n"
      "    INPUTS = {1}\n"
      "    OUTPUTS = {2}\n"
      "    TIED = {3}\n",
      number, interchange::python_tuple(quoted(stage.inputs)), interchange::python_tuple(quoted(stage.outputs)),
      interchange::python_tuple(groups));
}

}  // namespace

interchange::ArchiveStages stage_package(const std::string& path, const ModelSettings& settings,
                                         const LayersOfStages& layers_of_stages) {
  if (const auto it = settings.find("loss"); it != settings.end() && it->second != "none") {
    throw std::invalid_argument(path + ": setting loss is \"" + it->second +
                                "\", which is not part of the file; export the model with its loss");
  }
  if (is_torchscript_archive(files::ZipArchive(path, files::ZipArchive::Deflated::Read))) {
    throw FormatError(
        ErrorKind::UnsupportedModel,
        path +
            ": is a TorchScript file, which cannot be converted; use the .pt2 that stagecraft export-model writes of "
            "the "
            "original nn.Module (profile and plan it first). stagecraft run trains the TorchScript file as it is");
  }
  const auto source = std::make_shared<Conversion>();
  source->archive = read_pt2_archive(path);
  source->graph = pt2_graph(source->archive);
  model::Model model = model_of_graph(source->graph, settings);
  model.name = path;
  const std::vector<std::vector<int>> layers = layers_of_stages(model);
  const int loss = loss_of_graph(source->graph, settings);
  const Grouping grouping = groups_of_graph(source->graph, loss, settings);
  source->stages = stage_graphs(source->graph, grouping, loss, layers);
  source->archives = std::make_unique<StageArchives>(source->archive, source->graph, loss);

  interchange::ArchiveStages out;
  out.package.arch = std::filesystem::path(path).stem().string();
  for (const model::ModelInput& input : source->graph.inputs) out.package.inputs.push_back(input.name);
  out.package.outputs = names_of(source->graph, {loss});
  out.package.gives_loss = true;
  out.package.tied = tied_parameters(*source);
  out.package.more_files["exported.py"] = kExported;
  for (std::size_t s = 0; s < source->stages.size(); ++s) {
    const StageGraph& stage = source->stages[s];
    interchange::StageModule module;
    module.inputs = names_of(source->graph, stage.received);
    const std::vector<std::string> inputs = names_of(source->graph, stage.inputs);
    module.inputs.insert(module.inputs.end(), inputs.begin(), inputs.end());
    module.outputs = names_of(source->graph, stage.outputs);
    module.text = stage_text(module, s, out.package.tied);
    out.package.stages.push_back(std::move(module));
    out.archives[fmt::format("stage{}.pt2", s)] = [source, s](const std::string& file) {
      source->archives->write(source->stages[s], file);
    };
  }
  return out;
}

}  // namespace stagecraft::intake
