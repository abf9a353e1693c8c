#pragma once

#include "executor/intake/graph/layer_source.h"

namespace stagecraft {

/// Archives that torch.jit.save wrote, see torchscript_graph. The settings say what their inputs are.
[[nodiscard]] LayerSource torchscript_source();

}  // namespace stagecraft
