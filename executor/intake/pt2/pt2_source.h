#pragma once

#include "executor/intake/graph/layers/layer_source.h"

namespace stagecraft::intake {

/// Archives that torch.export.save wrote, see pt2_graph. They do not take the settings `samples` and `input.NAME`.
[[nodiscard]] LayerSource pt2_source();

}  // namespace stagecraft::intake
