#pragma once

#include <string>

#include "costmodel/prediction/predict.h"
#include "costmodel/timeline.h"

namespace stagecraft::project {

/// The closing table of a project: step, samples per second, time in which devices are idle and memory of the rank that
/// needs the most, predicted, and measured beside it unless `measured` is null.
[[nodiscard]] std::string summary_text(const Prediction& predicted, const Measurement* measured);

}  // namespace stagecraft::project
