#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "executor/intake/graph/layers/layer_source.h"

namespace stagecraft::intake {

/// The table of layer sources.
[[nodiscard]] const std::vector<LayerSource>& layer_sources();

/// Whether `name` is the path of a model file: it has the suffix of a source of files.
[[nodiscard]] bool is_model_file(const std::string& name);

/// The model `name` of the first source that has it, with `settings`: those of build_builtin_model, or import_settings
/// of a file. `mode` only matters for files: built-in layers follow LayerCall::training. Throws
/// std::invalid_argument for an unknown model or setting, listing the known ones, and for a value that does not fit;
/// FormatError for a file that cannot be read or run.
[[nodiscard]] model::Model build_model(const std::string& name, const ModelSettings& settings,
                                       model::ModelMode mode = model::ModelMode::Training);

/// Names of tied tensors in the state dict of the module from which model `name` was made, other than the ones that its
/// layers use: "lm_head.weight" -> "wte.weight". Both are one tensor. Empty if `name` is not a
/// file: a built-in model's state dict has the names of its layers. Throws as build_model does.
[[nodiscard]] std::map<std::string, std::string> tied_names(const std::string& name);

/// LayerSource::digest of the model file. Throws FormatError as build_model does.
[[nodiscard]] std::uint64_t model_digest(const std::string& path);

}  // namespace stagecraft::intake
