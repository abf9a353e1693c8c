#include "costmodel/format/results/whatif_json.h"

#include "costmodel/format/cursor.h"
#include "costmodel/format/predicted_step_json.h"

namespace stagecraft::format {
namespace {

constexpr int kVersion = 2;

Json side_json(const Prediction& prediction) {
  Json out = predicted_step_json(prediction);
  if (!prediction.other_device.empty()) out["other_device"] = prediction.other_device;
  out["bubble"] = prediction.bubble;
  out["memory"] = Json::array();
  for (const RankMemory& memory : prediction.timeline.memory)
    out["memory"].push_back(Json{{"rank", memory.rank}, {"peak_bytes", memory.total.value}});
  out["fits"] = Json::array();
  for (const StagePrediction& stage : prediction.stages) out["fits"].push_back(stage.fits);
  return out;
}

}  // namespace

std::string whatif_json(const WhatIf& result) {
  Json out = document("stagecraft.whatif", kVersion);
  out["changes"] = result.changes;
  out["before"] = side_json(result.before);
  out["after"] = side_json(result.after);
  out["time_ratio"] = Json{{"after_over_before", result.ratio.ratio},
                           {"low", result.ratio.low},
                           {"high", result.ratio.high},
                           {"faster_probability", result.ratio.first_faster}};
  return dump(out);
}

}  // namespace stagecraft::format
