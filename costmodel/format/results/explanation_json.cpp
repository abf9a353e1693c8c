#include "costmodel/format/results/explanation_json.h"

#include "costmodel/format/cursor.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

constexpr int kVersion = 1;

Json parts_json(const StepParts& parts) {
  return Json{{"compute_s", parts.compute.value},
              {"host_s", parts.host.value},
              {"exposed_transfer_s", parts.exposed_transfer.value},
              {"reduce_s", parts.reduce.value},
              {"update_s", parts.update.value},
              {"bubble_s", parts.bubble.value}};
}

Json path_json(const Explanation& explanation) {
  Json out;
  out["steps"] = explanation.steps;
  out["shares"] = Json::array();
  for (const PathShare& share : explanation.path_shares) {
    out["shares"].push_back(Json{{"stage", share.stage},
                                 {"action", to_string(share.kind)},
                                 {"count", share.count},
                                 {"time_s", share.time.value}});
  }
  out["segments"] = Json::array();
  for (const Span& span : explanation.path) {
    out["segments"].push_back(Json{{"action", action_text(span.action)},
                                   {"rank", span.rank},
                                   {"start_s", span.start.value},
                                   {"end_s", span.end.value}});
  }
  return out;
}

}  // namespace

std::string explanation_json(const Explanation& explanation) {
  Json out = document("stagecraft.explanation", kVersion);
  out["iteration_s"] = explanation.prediction.iteration.value;
  out["parts"] = parts_json(explanation.parts);
  out["positions"] = Json::array();
  for (const PositionParts& of : explanation.positions) {
    Json position{{"stages", of.stages}, {"ranks", of.ranks}, {"parts", parts_json(of.parts)}};
    if (of.least_slack) position["least_slack_s"] = of.least_slack->value;
    out["positions"].push_back(position);
  }
  out["bottleneck"] = Json{{"position", explanation.bottleneck}, {"over_mean", explanation.imbalance}};
  if (!explanation.path.empty()) out["path"] = path_json(explanation);
  out["moves"] = explanation.moves;
  if (explanation.best_move) {
    const LayerMove& move = *explanation.best_move;
    out["best_move"] =
        Json{{"layer", move.layer}, {"from", move.from}, {"to", move.to}, {"iteration_s", move.step.value}};
  }
  out["memory"] = Json::array();
  for (const MemoryHeadroom& memory : explanation.memory) {
    Json rank{{"rank", memory.rank}, {"peak_bytes", memory.peak.value}};
    if (memory.room) rank["room_bytes"] = memory.room->value;
    out["memory"].push_back(rank);
  }
  return dump(out);
}

}  // namespace stagecraft::format
