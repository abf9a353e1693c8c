#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "executor/model/model.h"

namespace stagecraft::intake {

/// Settings of a model, as set by `--set key=value` and kept in graphs and plans. For every model, besides the options
/// of a built-in one (build_builtin_model):
///   layers      auto, leaf, op or depth=N (default auto)
/// for a model from a file:
///   loss        a name of losses.h; by default the model returns its loss
///   loss_output the model output that is the loss, or from which it is computed (default: the file's notes, else 0)
///   range.NAME  FROM..TO of an integer input: FROM to TO - 1
/// and for TorchScript files, which do not contain it (see torchscript_graph.h):
///   input.NAME  type and shape of one sample of an argument of forward, such as float32[3,224,224]
///   samples     the only batch size that the model accepts; by default it accepts any
using ModelSettings = std::map<std::string, std::string>;

/// The settings of models from files by name.
[[nodiscard]] const std::vector<std::string>& import_settings();

/// Throws std::invalid_argument, listing import_settings, if one of `settings` is not among them.
void check_import_settings(const ModelSettings& settings);

/// The value of setting `key`, or `otherwise` if it is not set.
[[nodiscard]] std::string setting(const ModelSettings& settings, const std::string& key, const std::string& otherwise);

/// The ranges by input: first number and the one past the last. Throws std::invalid_argument for a range.NAME that is
/// not FROM..TO.
[[nodiscard]] std::map<std::string, std::pair<std::int64_t, std::int64_t>> input_ranges(const ModelSettings& settings);

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
