#include "executor/intake/pt2/pt2_source.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "executor/files/zip_archive.h"
#include "executor/intake/graph/layers/graph_model.h"
#include "executor/intake/pt2/pt2_archive.h"
#include "executor/intake/pt2/pt2_graph.h"

namespace stagecraft::intake {
namespace {

OperatorGraph read_graph(const std::string& path, const ModelSettings& settings, model::ModelMode mode) {
  for (const auto& [key, text] : settings) {
    if (key == "samples" || key.starts_with("input.")) {
      throw std::invalid_argument(path + ": setting " + key +
                                  " is only for TorchScript files; this file describes its inputs");
    }
  }
  return pt2_graph(read_pt2_archive(path), input_ranges(settings), mode);
}

/// As pt2_graph keeps the first name of tied parameters.
std::map<std::string, std::string> tied_names_of(const Pt2Archive& archive) {
  std::vector<std::pair<std::string, StoredTensor>> kept;
  std::map<std::string, std::string> out;
  for (const ProgramInput& input : archive.program.inputs) {
    if (input.kind != ProgramInput::Kind::Parameter && input.kind != ProgramInput::Kind::Buffer) continue;
    const auto stored = archive.tensors.find(input.name);
    if (stored == archive.tensors.end()) continue;
    const bool trainable = input.kind == ProgramInput::Kind::Parameter && stored->second.requires_grad;
    const auto first = std::ranges::find(kept, stored->second, &std::pair<std::string, StoredTensor>::second);
    if (trainable && first != kept.end()) {
      out[input.name] = first->first;
    } else {
      kept.emplace_back(input.name, stored->second);
    }
  }
  return out;
}

}  // namespace

LayerSource pt2_source() {
  return {.name = "pt2",
          .models = "a .pt2 archive of torch.export.save",
          .ending = ".pt2",
          .has =
              [](const std::string& path) {
                return files::has_record_in_folder(files::ZipArchive(path, files::ZipArchive::Deflated::Read),
                                                   "archive_format");
              },
          .build =
              [](const std::string& path, const ModelSettings& settings, model::ModelMode mode) {
                return model_of_file(path, settings, mode, {.read = read_graph, .same_nodes = true});
              },
          .tied_names = [](const std::string& path) { return tied_names_of(read_pt2_archive(path)); },
          .digest = archive_digest};
}

}  // namespace stagecraft::intake
