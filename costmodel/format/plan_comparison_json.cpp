#include "costmodel/format/plan_comparison_json.h"

#include "costmodel/format/cursor.h"

namespace stagecraft::format {
namespace {

constexpr int kVersion = 1;

Json side_json(const Prediction& prediction) {
  Json out{{"iteration_s", prediction.iteration.value}};
  if (prediction.low) out["iteration_low_s"] = prediction.low->value;
  if (prediction.high) out["iteration_high_s"] = prediction.high->value;
  if (prediction.samples_per_s) out["samples_per_s"] = *prediction.samples_per_s;
  return out;
}

}  // namespace

std::string plan_comparison_json(const PlanComparison& comparison) {
  Json out = document("stagecraft.diff", kVersion);
  out["moved"] = Json::array();
  for (const MovedLayer& moved : comparison.moved)
    out["moved"].push_back(Json{{"layer", moved.layer}, {"first", moved.first}, {"second", moved.second}});
  out["differences"] = Json::array();
  for (const PlanDifference& difference : comparison.differences) {
    out["differences"].push_back(
        Json{{"what", difference.what}, {"first", difference.first}, {"second", difference.second}});
  }
  out["first"] = side_json(comparison.first);
  out["second"] = side_json(comparison.second);
  out["time_ratio"] = Json{{"first_over_second", comparison.ratio.ratio},
                           {"low", comparison.ratio.low},
                           {"high", comparison.ratio.high},
                           {"faster_probability", comparison.ratio.first_faster}};
  return dump(out);
}

}  // namespace stagecraft::format
