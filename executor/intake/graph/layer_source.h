#pragma once

#include <functional>
#include <string>

#include "executor/intake/graph/import_settings.h"
#include "executor/model/model.h"

namespace stagecraft {

/// Where models come from: an entry of the table of layer sources (intake/layer_sources.h).
struct LayerSource {
  std::string name;    ///< unique: "built-in", "pt2", "torchscript"
  std::string models;  ///< what its models are, in an error that lists what would be right
  std::string ending;  ///< of the names of its models, which are paths; empty: they are not files
  /// Whether `model` is one of its models. Of a file its content decides, not its name. Throws FormatError for a file
  /// that cannot be read.
  std::function<bool(const std::string& model)> has;
  /// The model: its name is `model`. Throws std::invalid_argument for settings that do not fit, FormatError for a file
  /// that cannot be read or run.
  std::function<Model(const std::string& model, const ModelSettings& settings, ModelMode mode)> build;
};

}  // namespace stagecraft
