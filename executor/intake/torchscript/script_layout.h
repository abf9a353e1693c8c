#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/torchscript/script_module.h"

namespace stagecraft::intake {

/// An argument of forward: a tensor of the model's inputs, or a constant.
struct ScriptInput {
  model::ModelInput model;
  std::optional<c10::IValue> constant = {};
};

/// The graph of the module's forward, see torchscript_graph. `samples`: the only batch size. Constants in the code are
/// added to `state`.
[[nodiscard]] OperatorGraph lay_out_script(const std::string& file, ScriptState& state,
                                           const std::vector<ScriptInput>& inputs, std::optional<std::int64_t> samples);

}  // namespace stagecraft::intake
