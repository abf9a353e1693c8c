#pragma once

#include <string>
#include <vector>

#include "costmodel/prediction/predict.h"

namespace stagecraft::report {

/// What would shorten the step of a prediction, the largest loss first, at most three sentences, without a full stop:
/// "the pipeline is empty for 22.1 % of the step: try more --microbatches". A loss below 5 % of the step, by
/// mean_parts, is not worth one, nor a stage less than 10 % slower than the mean.
[[nodiscard]] std::vector<std::string> next_steps(const Prediction& prediction);

}  // namespace stagecraft::report
