#pragma once

#include <string>

#include "costmodel/prediction/predict.h"
#include "costmodel/timeline.h"

namespace stagecraft::project {

/// The summary table of a project: step, samples per second, idle time of the devices and memory of the rank that needs
/// the most, predicted and, unless `measured` is null, measured.
[[nodiscard]] std::string summary_text(const Prediction& predicted, const Measurement* measured);

}  // namespace stagecraft::project
