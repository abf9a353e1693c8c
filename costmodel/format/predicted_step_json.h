#pragma once

#include "costmodel/format/cursor.h"
#include "costmodel/prediction/predict.h"

namespace stagecraft::format {

/// Step, its interval if there is one, and throughput: the fields of each prediction in documents that compare
/// predictions.
[[nodiscard]] Json predicted_step_json(const Prediction& prediction);

}  // namespace stagecraft::format
