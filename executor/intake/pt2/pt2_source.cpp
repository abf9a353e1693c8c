#include "executor/intake/pt2/pt2_source.h"

#include <stdexcept>

#include "executor/files/zip_archive.h"
#include "executor/intake/graph/graph_model.h"
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
              }};
}

}  // namespace stagecraft::intake
