#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "executor/intake/graph/layers/import_settings.h"
#include "executor/model/model.h"

namespace stagecraft::intake {

/// Where models come from: an entry of the table of layer sources (intake/layer_sources.h).
struct LayerSource {
  std::string name;    ///< unique: "built-in", "pt2", "torchscript"
  std::string models;  ///< kind of its models, for errors that list valid choices
  std::string ending;  ///< suffix of its models' names, which are paths; empty: not files
  /// Whether `model` is one of its models. For a file, the content decides, not the name. Throws FormatError for a file
  /// that cannot be read.
  std::function<bool(const std::string& model)> has;
  /// The model: its name is `model`. Throws std::invalid_argument for settings that do not fit, FormatError for a file
  /// that cannot be read or run.
  std::function<model::Model(const std::string& model, const ModelSettings& settings, model::ModelMode mode)> build;
  /// For files: the names in the module's state dict of tensors that layers know by another name, because they are
  /// tied, and that other name. Throws FormatError for a file that cannot be read.
  std::function<std::map<std::string, std::string>(const std::string& model)> tied_names;
  /// For files: a fingerprint of the content, with which ranks check that they read the same model. Throws FormatError
  /// for a file that cannot be read.
  std::function<std::uint64_t(const std::string& model)> digest = nullptr;
};

/// LayerSource::digest of sources whose files are ZIP archives: from the names, sizes and CRCs of the records.
[[nodiscard]] std::uint64_t archive_digest(const std::string& path);

}  // namespace stagecraft::intake
