#pragma once

#include <functional>
#include <optional>
#include <string>

#include "executor/intake/graph/layers/layer_groups.h"
#include "executor/intake/graph/layers/layer_source.h"
#include "executor/intake/graph/operator_graph.h"
#include "executor/model/model.h"

namespace stagecraft::intake {

/// The value of `graph` that is the loss according to the settings. Throws std::invalid_argument for an unknown setting
/// and for an output that is not a loss, FormatError for a graph without outputs.
[[nodiscard]] int loss_of_graph(const OperatorGraph& graph, const ModelSettings& settings);

/// Its layers by setting `layers`, in the order of Model::layers.
[[nodiscard]] Grouping groups_of_graph(const OperatorGraph& graph, int loss, const ModelSettings& settings);

/// The layers of `grouping`, with their inputs, parameters and forwards, up to value `root` of `graph`.
[[nodiscard]] model::Model layers_of_groups(const OperatorGraph& graph, Grouping grouping, int root);

/// The model of an imported graph: layers by setting `layers` or `grouping`, the loss by the other settings. Each layer
/// runs its part of the graph, operator by operator, in the order of the file and with autograd; it copies received
/// values that it writes in place. Before each operator that draws random numbers, the device's default generator is
/// seeded with mix_seed(run seed, name of the node, step, microbatch), so that the numbers do not depend on cuts or
/// schedule; threads take turns there. A value that follows only from the inputs and that several layers read is a
/// derived input.
[[nodiscard]] model::Model model_of_graph(OperatorGraph graph, const ModelSettings& settings,
                                          std::optional<Grouping> grouping = {});

/// A reader of one kind of file.
struct GraphReader {
  std::function<OperatorGraph(const std::string& path, const ModelSettings& settings, model::ModelMode mode)> read;
  bool same_nodes = true;  ///< whether the graphs of both modes have the same nodes and values
};

/// The model in file `path`: name and options as given. Parameters, buffers and layers have their names in PyTorch.
/// Throws FormatError for what `reader` refuses, std::invalid_argument for an unknown or invalid setting, with what is
/// valid.
///
/// For evaluation, the layers have the same names and the same nodes' values, and compute what model.eval() does in
/// Python: see evaluation_value; buffers do not change. Throws FormatError as check_evaluation does.
[[nodiscard]] model::Model model_of_file(const std::string& path, const ModelSettings& settings, model::ModelMode mode,
                                         const GraphReader& reader);

}  // namespace stagecraft::intake
