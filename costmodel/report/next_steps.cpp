#include "costmodel/report/next_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "costmodel/analysis/explain.h"
#include "costmodel/report/pictures.h"

namespace stagecraft::report {
namespace {

constexpr double kWorthALine = 0.05;
constexpr double kSlower = 0.1;
constexpr std::size_t kShown = 3;

/// How much longer the slowest stage works than a rank does on average, and its label.
std::pair<double, std::string> imbalance(const Prediction& prediction) {
  Seconds most;
  Seconds sum;
  int ranks = 0;
  std::string label;
  for (const StageGroup& group : stage_groups(prediction)) {
    const Seconds work = group.sum.compute + group.sum.update + group.sum.reduce;
    sum += work * group.sum.replicas;
    ranks += group.sum.replicas;
    if (work <= most) continue;
    most = work;
    label = group.label;
  }
  if (ranks == 0 || sum <= Seconds(0)) return {0, ""};
  return {most / (sum / ranks) - 1, label};
}

}  // namespace

std::vector<std::string> next_steps(const Prediction& prediction) {
  if (prediction.iteration <= Seconds(0) || prediction.stages.empty()) return {};
  const StepParts parts = mean_parts(prediction);
  std::vector<std::pair<double, std::string>> found;
  const auto add = [&](double share, const std::string& text) {
    if (share >= kWorthALine) found.emplace_back(share, fmt::format(fmt::runtime(text), share * 100));
  };
  const auto [slower, slowest] = imbalance(prediction);
  // While the others wait for the slowest stage, the pipeline is not empty.
  const double uneven = slower >= kSlower ? slower / (1 + slower) : 0;
  add(uneven, slowest + fmt::format(" works {:.0f} % longer than the mean, so that the others wait: move a layer "
                                    "(stagecraft explain names the best one) or give it more replicas",
                                    slower * 100));
  add(parts.bubble / prediction.iteration - uneven,
      "the pipeline is empty for {:.1f} % of the step: try more --microbatches or --schedule best");
  add(parts.exposed_transfer / prediction.iteration,
      "ranks wait for messages for {:.1f} % of the step: faster links, or cuts where tensors are smaller");
  add(parts.reduce / prediction.iteration,
      "gradients are summed for {:.1f} % of the step, while nothing is computed: try --gradient-bucket-bytes, or more "
      "--microbatches per step");
  std::ranges::stable_sort(found, std::greater<>(), &std::pair<double, std::string>::first);
  std::vector<std::string> out;
  if (std::ranges::any_of(prediction.stages, [](const StagePrediction& stage) { return !stage.fits; }))
    out.emplace_back("it may not fit in memory: try --recompute, smaller microbatches or more stages");
  const std::size_t unused = prediction.unused_devices.size() + prediction.idle_devices.size();
  if (unused > 0) out.push_back(idle_text(prediction) + ": try more --microbatches, or fewer devices");
  for (const auto& [share, text] : found) out.push_back(text);
  if (const std::string low = low_share_text(prediction.rates, prediction.bubble); !low.empty()) out.push_back(low);
  if (out.size() > kShown) out.resize(kShown);
  return out;
}

}  // namespace stagecraft::report
