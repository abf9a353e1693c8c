#pragma once

#include <functional>
#include <optional>
#include <string>

#include "executor/intake/graph/import_settings.h"
#include "executor/intake/graph/layer_groups.h"
#include "executor/intake/graph/operator_graph.h"
#include "executor/model/model.h"

namespace stagecraft {

/// The value of `graph` that is the loss, by the settings. Throws std::invalid_argument for an unknown setting and for
/// an output that is not a loss, FormatError for a graph without outputs.
[[nodiscard]] int loss_of_graph(const OperatorGraph& graph, const ModelSettings& settings);

/// Its layers by setting `layers`, in the order of Model::layers.
[[nodiscard]] Grouping groups_of_graph(const OperatorGraph& graph, int loss, const ModelSettings& settings);

/// The model of a graph that was read: layers by setting `layers`, or as `grouping` says, the loss by the others.
/// Each layer runs its part of the graph, operator by operator, in the order of the file and with autograd; it
/// copies what it receives and writes in place. Before each operator that draws random numbers the device's default
/// generator gets mix_seed(run seed, name of the node, step, microbatch), so that no cut and no schedule changes them;
/// threads take turns there. What follows from the inputs alone and several layers read is a derived input.
[[nodiscard]] Model model_of_graph(OperatorGraph graph, const ModelSettings& settings,
                                   std::optional<Grouping> grouping = {});

/// How a kind of file is read.
struct GraphReader {
  std::function<OperatorGraph(const std::string& path, const ModelSettings& settings, ModelMode mode)> read;
  bool same_nodes = true;  ///< whether the graphs of both modes have the same nodes and values
};

/// The model in file `path`: name and options as given. Parameters, buffers and layers have their names in PyTorch.
/// Throws FormatError for what `reader` refuses, std::invalid_argument for a setting that is unknown or does not fit,
/// with what would.
///
/// For evaluation the layers have the same names and hold the same nodes' values, and compute what model.eval() does in
/// Python: see evaluation_value; no buffer changes. Throws FormatError as check_evaluation.
[[nodiscard]] Model model_of_file(const std::string& path, const ModelSettings& settings, ModelMode mode,
                                  const GraphReader& reader);

}  // namespace stagecraft
