#pragma once

#include <functional>
#include <string>
#include <vector>

#include "costmodel/interchange/convert/python_package.h"
#include "executor/intake/graph/layers/layer_source.h"
#include "executor/model/model.h"

namespace stagecraft::intake {

/// For each stage, its layers as indices into Model::layers.
using LayersOfStages = std::function<std::vector<std::vector<int>>(const model::Model&)>;

/// The torch.export archive at `path` in stages: a Python package, and an archive per stage. `settings` define its
/// layers, see import_settings. Throws FormatError for a file that cannot be read or run, std::invalid_argument for
/// settings that do not fit, and what `layers_of_stages` throws.
[[nodiscard]] interchange::ArchiveStages stage_package(const std::string& path, const ModelSettings& settings,
                                                       const LayersOfStages& layers_of_stages);

}  // namespace stagecraft::intake
