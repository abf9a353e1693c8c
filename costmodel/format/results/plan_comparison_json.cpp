#include "costmodel/format/results/plan_comparison_json.h"

#include "costmodel/format/cursor.h"
#include "costmodel/format/predicted_step_json.h"

namespace stagecraft::format {
namespace {

constexpr int kVersion = 1;

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
  out["first"] = predicted_step_json(comparison.first);
  out["second"] = predicted_step_json(comparison.second);
  out["time_ratio"] = Json{{"first_over_second", comparison.ratio.ratio},
                           {"low", comparison.ratio.low},
                           {"high", comparison.ratio.high},
                           {"faster_probability", comparison.ratio.first_faster}};
  return dump(out);
}

}  // namespace stagecraft::format
