#pragma once

#include "costmodel/format/cursor.h"
#include "costmodel/prediction/predict.h"

namespace stagecraft::format {

/// Step, its interval if there is one, and throughput: what documents that set predictions side by side have of each.
[[nodiscard]] Json predicted_step_json(const Prediction& prediction);

}  // namespace stagecraft::format
