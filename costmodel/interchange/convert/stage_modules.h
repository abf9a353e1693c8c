#pragma once

#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/interchange/convert/layer_kinds.h"
#include "costmodel/interchange/convert/python_package.h"
#include "costmodel/plan.h"

namespace stagecraft::interchange {

/// Each layer's stage in a plan for `graph`, -1 for inputs. Throws std::invalid_argument naming the layer that is not
/// in any stage or in two, is not in the graph, or is an input.
[[nodiscard]] std::vector<int> stages_of(const Graph& graph, const Plan& plan);

/// The same for an already partitioned graph, from Layer::stage. Throws std::invalid_argument naming the layer without
/// a stage, or the stage without layers.
[[nodiscard]] std::vector<int> stages_of(const Graph& graph);

/// The model of `graph`'s descriptions (Layer::name), in stages. Inputs are "input0", "input1", ... by the number after
/// "Input", then in the graph's order; a layer's value and module have the name that python_names gives its id, item K
/// of a tuple "itemK_of_NAME". The model returns what no layer reads, in the graph's order; unread items are omitted if
/// another item is read. `hidden` is None and `Size` the axis' length, both made where they are read.
///
/// Defaults where a description does not say: View keeps the batch first, followed by the numbers it gives, or -1;
/// "inplace" applies where nothing else can see it. Weights are torch's defaults.
/// Throws std::invalid_argument naming the layer: a description that cannot be read, an unknown kind, inputs of a
/// number or form that the kind does not take, an item that does not exist, data from a later stage; a stage that
/// computes nothing.
[[nodiscard]] PythonPackage package_of(const Graph& graph, const std::vector<int>& stage_of_layer,
                                       const OwnKinds& classes);

}  // namespace stagecraft::interchange
