#include "costmodel/format/predicted_step_json.h"

namespace stagecraft::format {

Json predicted_step_json(const Prediction& prediction) {
  Json out{{"iteration_s", prediction.iteration.value}};
  if (prediction.low) out["iteration_low_s"] = prediction.low->value;
  if (prediction.high) out["iteration_high_s"] = prediction.high->value;
  if (prediction.samples_per_s) out["samples_per_s"] = *prediction.samples_per_s;
  return out;
}

}  // namespace stagecraft::format
