#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

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

}  // namespace stagecraft::intake
