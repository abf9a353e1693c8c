#pragma once

#include "executor/intake/graph/layers/layer_source.h"

namespace stagecraft::intake {

/// Archives that torch.jit.save wrote, see torchscript_graph. The settings describe their inputs.
[[nodiscard]] LayerSource torchscript_source();

}  // namespace stagecraft::intake
