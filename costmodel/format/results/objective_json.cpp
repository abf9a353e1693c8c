#include "costmodel/format/results/objective_json.h"

#include <cmath>
#include <limits>

#include "costmodel/format/cursor.h"

namespace stagecraft::format {
namespace {

constexpr int kVersion = 1;

Json stage_json(const ObjectiveStage& stage) {
  Json out;
  out["layers"] = stage.layers;
  out["device"] = stage.device;
  out["replicas"] = stage.replicas;
  out["tensor_devices"] = stage.tensor_devices;
  out["time_s"] = stage.time.value;
  if (stage.memory_bytes) out["memory_bytes"] = *stage.memory_bytes;
  if (!stage.modes.empty()) out["modes"] = stage.modes;
  return out;
}

}  // namespace

double gap(const ObjectiveAnswer& answer) {
  if (is_exact(answer)) return 0;
  if (answer.lower_bound <= Seconds(0)) return std::numeric_limits<double>::infinity();
  return answer.value / answer.lower_bound - 1;
}

bool is_exact(const ObjectiveAnswer& answer) { return answer.value == answer.lower_bound; }

std::string objective_json(const ObjectiveAnswer& answer) {
  Json out = document("stagecraft.objective", kVersion);
  out["profile"] = answer.profile;
  out["source"] = answer.source;
  out["unit"] = answer.unit;
  out["value_s"] = answer.value.value;
  out["lower_bound_s"] = answer.lower_bound.value;
  if (std::isfinite(gap(answer))) out["gap"] = gap(answer);
  out["exact"] = is_exact(answer);
  if (!answer.stopped.empty()) out["stopped"] = answer.stopped;
  out["stages"] = Json::array();
  for (const ObjectiveStage& stage : answer.stages) out["stages"].push_back(stage_json(stage));
  out["search"] = Json{{"nodes", answer.nodes}, {"downsets", answer.downsets}, {"pairs", answer.pairs}};
  out["notes"] = answer.notes;
  return dump(out);
}

}  // namespace stagecraft::format
