#include "costmodel/report/pictures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "costmodel/index.h"
#include "costmodel/interchange/pipedream_conf.h"

namespace stagecraft::report {

std::vector<StageGroup> stage_groups(const Prediction& prediction) {
  std::vector<StageGroup> out;
  for (const std::vector<int>& stages : stages_of_positions(prediction)) {
    StageGroup& group = out.emplace_back();
    group.label = fmt::format("stage{} {}", stages.size() == 1 ? "" : "s", fmt::join(stages, ", "));
    for (const int s : stages) {
      const StagePrediction& stage = prediction.stages[to_index(s)];
      if (s == stages.front()) {
        group.sum = stage;
        continue;
      }
      group.sum.compute += stage.compute;
      group.sum.update += stage.update;
      group.sum.reduce += stage.reduce;
      group.sum.exposed_transfer += stage.exposed_transfer;
      group.sum.bubble += stage.bubble;
      group.sum.memory.total += stage.memory.total;
      for (const auto& [part, bytes] : stage.memory.parts) group.sum.memory.parts[part] += bytes;
      group.sum.fits = group.sum.fits && stage.fits;
    }
  }
  return out;
}

std::vector<int> stage_of_layers(const Graph& graph, const Plan* plan) {
  std::vector<int> out(graph.layers.size(), -1);
  if (plan == nullptr) return out;
  const Graph staged = interchange::staged_graph(graph, *plan);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!is_input(graph.layers[i])) out[i] = *staged.layers[i].stage;
  }
  return out;
}

}  // namespace stagecraft::report
