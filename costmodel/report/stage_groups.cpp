#include "costmodel/report/stage_groups.h"

#include <fmt/format.h>

#include <algorithm>

#include "costmodel/index.h"

namespace stagecraft::report {

std::vector<StageGroup> stage_groups(const Prediction& prediction) {
  // The ranks' first stages are 0, 1, ...; what comes after them are further chunks.
  const std::vector<int>& first = prediction.timeline.stage_of_rank;
  const int stages = to_int(prediction.stages.size());
  const int positions = first.empty() ? stages : std::min(stages, *std::ranges::max_element(first) + 1);
  std::vector<StageGroup> out;
  for (const StagePrediction& stage : prediction.stages) {
    if (to_int(out.size()) < positions) {
      out.push_back({fmt::format("stage {}", stage.stage), stage});
      continue;
    }
    StageGroup& group = out[to_index(stage.stage % positions)];
    if (group.label.starts_with("stage ")) group.label.insert(5, "s");
    group.label += fmt::format(", {}", stage.stage);
    group.sum.compute += stage.compute;
    group.sum.update += stage.update;
    group.sum.reduce += stage.reduce;
    group.sum.exposed_transfer += stage.exposed_transfer;
    group.sum.bubble += stage.bubble;
    group.sum.memory.total += stage.memory.total;
    for (const auto& [part, bytes] : stage.memory.parts) group.sum.memory.parts[part] += bytes;
    group.sum.fits = group.sum.fits && stage.fits;
  }
  return out;
}

}  // namespace stagecraft::report
