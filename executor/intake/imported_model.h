#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "executor/intake/graph/layer_groups.h"
#include "executor/intake/graph/operator_graph.h"
#include "executor/model/layer_source.h"

namespace stagecraft {

/// Settings of a model that comes from a file, as `--set key=value` gives them and as graphs and plans keep them:
///   layers      auto, leaf, op or depth=N (default auto)
///   loss        a name of losses.h; by default the model gives its loss itself
///   loss_output which of the model's outputs the loss is, or is computed from (default: the file's notes, else 0)
///   range.NAME  FROM..TO of a whole-number input: FROM to TO - 1
/// and, of files of TorchScript, which do not say it (see torchscript_graph.h):
///   input.NAME  type and shape of one sample of an argument of forward, as float32[3,224,224]
///   samples     the only batch size that the model takes; by default it takes any
[[nodiscard]] const std::vector<std::string>& import_settings();

/// Whether `name` is a file that import_model reads: it ends in .pt2 or .pt.
[[nodiscard]] bool is_model_file(const std::string& name);

/// A number for what the file holds, from the names and CRCs of its records: ranks that read copies of a file can tell
/// whether they are the same. Throws FormatError as import_model.
[[nodiscard]] std::uint64_t model_digest(const std::string& path);

/// The model in file `path`: name and options as given. Parameters, buffers and layers have their names in PyTorch.
/// Each layer runs its part of the file's graph, operator by operator, in the order of the file and with autograd; it
/// copies what it receives and writes in place. Before each operator that draws random numbers the device's default
/// generator gets mix_seed(run seed, name of the node, step, microbatch), so that no cut and no schedule changes them;
/// threads take turns there. What follows from the inputs alone and several layers read is a derived input.
/// Throws FormatError for what the file's reader refuses, std::invalid_argument for a setting that is unknown or does
/// not fit, with what would.
///
/// For evaluation the layers have the same names and hold the same nodes' values, and compute what model.eval() does in
/// Python: see evaluation_value; no buffer changes. Throws FormatError as check_evaluation.
[[nodiscard]] Model import_model(const std::string& path, const std::map<std::string, std::string>& settings,
                                 ModelMode mode = ModelMode::Training);

/// The value of `graph` that is the loss, by the settings. Throws std::invalid_argument for an unknown setting and for
/// an output that is no loss, FormatError for a graph that gives nothing.
[[nodiscard]] int loss_of_graph(const OperatorGraph& graph, const std::map<std::string, std::string>& settings);

/// Its layers by setting `layers`, in the order of Model::layers.
[[nodiscard]] Grouping groups_of_graph(const OperatorGraph& graph, int loss,
                                       const std::map<std::string, std::string>& settings);

/// The same of a graph that was read: layers by setting `layers`, or as `grouping` says, the loss by the others.
[[nodiscard]] Model model_of_graph(OperatorGraph graph, const std::map<std::string, std::string>& settings,
                                   std::optional<Grouping> grouping = {});

}  // namespace stagecraft
