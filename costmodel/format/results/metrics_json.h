#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "costmodel/format/results/evaluation_json.h"
#include "costmodel/units.h"

namespace stagecraft::format {

/// A line of a metrics file.
struct StepMetrics {
  std::int64_t step = 0;                     ///< steps done, this one included
  std::optional<double> epoch = {};          ///< samples seen / samples in the data, if the data has a length
  double loss = 0;                           ///< of the step
  std::optional<double> learning_rate = {};  ///< of the step
  Seconds step_time;                         ///< mean since the previous line
  std::int64_t step_samples = 0;
  std::optional<double> gradient_norm = {};
  std::optional<double> loss_scale = {};
  std::optional<ModelEvaluation> validation = {};  ///< after the step
};

/// The kind of such files, as check_outputs names it.
inline constexpr const char* kMetricsKind = "file of metrics";

/// A JSON object on one line: {"step":12,"epoch":0.5,"loss":2.1,...}, with the shortest digits that give the same
/// number; null for one that is infinite or NaN, no key for one that is absent.
[[nodiscard]] std::string metrics_line(const StepMetrics& metrics);

}  // namespace stagecraft::format
