#include "executor/intake/torchscript/torchscript_source.h"

#include <stdexcept>

#include "costmodel/text/number.h"
#include "executor/files/zip_archive.h"
#include "executor/intake/graph/layers/graph_model.h"
#include "executor/intake/torchscript/loading/script_state.h"
#include "executor/intake/torchscript/loading/torchscript_archive.h"
#include "executor/intake/torchscript/torchscript_graph.h"

namespace stagecraft::intake {
namespace {

OperatorGraph read_graph(const std::string& path, const ModelSettings& settings, model::ModelMode mode) {
  TorchScriptInputs told;
  told.ranges = input_ranges(settings);
  for (const auto& [key, text] : settings) {
    if (key.starts_with("input.")) told.inputs[key.substr(6)] = text;
  }
  if (const auto it = settings.find("samples"); it != settings.end()) {
    const std::string& text = it->second;
    const std::optional<std::int64_t> samples = number_in<std::int64_t>(text);
    if (!samples || *samples < 1 || *samples > 1 << 20)
      throw std::invalid_argument("setting samples is \"" + text + "\", expected an integer of at least 1");
    told.samples = *samples;
  }
  return torchscript_graph(files::ZipArchive(path, files::ZipArchive::Deflated::Read), told, mode);
}

}  // namespace

LayerSource torchscript_source() {
  return {.name = "torchscript",
          .models = "a .pt archive of torch.jit.save",
          .ending = ".pt",
          .has =
              [](const std::string& path) {
                return is_torchscript_archive(files::ZipArchive(path, files::ZipArchive::Deflated::Read));
              },
          .build =
              [](const std::string& path, const ModelSettings& settings, model::ModelMode mode) {
                return model_of_file(path, settings, mode, {.read = read_graph, .same_nodes = false});
              },
          .tied_names =
              [](const std::string& path) {
                const files::ZipArchive archive(path, files::ZipArchive::Deflated::Read);
                return ScriptState(load_torchscript(archive), model::ModelMode::Training).tied_names();
              },
          .digest = archive_digest};
}

}  // namespace stagecraft::intake
