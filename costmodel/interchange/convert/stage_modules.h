#pragma once

#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/interchange/convert/layer_kinds.h"
#include "costmodel/interchange/convert/python_package.h"
#include "costmodel/plan.h"

namespace stagecraft {

/// Each layer's stage, -1 for inputs: of a plan for `graph`. Throws std::invalid_argument naming the layer that stands
/// in no stage or in two, is unknown to the graph, or is an input.
[[nodiscard]] std::vector<int> stages_of(const Graph& graph, const Plan& plan);

/// The same of an already partitioned graph, from Layer::stage. Throws std::invalid_argument naming the layer without a
/// stage, or the stage without layers.
[[nodiscard]] std::vector<int> stages_of(const Graph& graph);

/// The model that `graph`'s descriptions (Layer::name) tell of, in stages. Inputs are "input0", "input1", ... by the
/// number behind "Input", then in the graph's order; a layer's value and module are called as python_names calls its
/// id, item K of a tuple "itemK_of_NAME". The model gives what no layer reads, in the graph's order; items that are not
/// read are left out where another item is. `hidden` is None and `Size` the axis' length, both made where they are
/// read.
///
/// What a description does not say is taken so: View keeps the batch first, then come the numbers it names, -1 where it
/// names none; "inplace" holds where nothing else can see it. Weights are torch's defaults.
/// Throws std::invalid_argument naming the layer: a description that cannot be read, an unknown kind, inputs of another
/// count or form than the kind takes, an item that does not exist, data from a later stage; a stage that computes
/// nothing.
[[nodiscard]] PythonPackage package_of(const Graph& graph, const std::vector<int>& stage_of_layer, const OwnKinds& own);

}  // namespace stagecraft
