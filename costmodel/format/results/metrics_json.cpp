#include "costmodel/format/results/metrics_json.h"

#include <fmt/format.h>

#include <cmath>

namespace stagecraft::format {
namespace {

std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

}  // namespace

std::string metrics_line(const StepMetrics& metrics) {
  std::string out = fmt::format(R"({{"step":{})", metrics.step);
  const auto add = [&out](const char* key, std::optional<double> value) {
    if (value) out += fmt::format(R"(,"{}":{})", key, number(*value));
  };
  add("epoch", metrics.epoch);
  add("loss", metrics.loss);
  add("learning_rate", metrics.learning_rate);
  add("step_s", metrics.step_time.value);
  add("samples_per_s", static_cast<double>(metrics.step_samples) / metrics.step_time.value);
  add("gradient_norm", metrics.gradient_norm);
  add("loss_scale", metrics.loss_scale);
  if (metrics.validation) {
    add("validation_loss", metrics.validation->loss);
    add("validation_accuracy", accuracy(*metrics.validation));
    add("validation_perplexity", metrics.validation->perplexity);
    add("validation_s", metrics.validation->time.value);
  }
  return out + "}\n";
}

}  // namespace stagecraft::format
