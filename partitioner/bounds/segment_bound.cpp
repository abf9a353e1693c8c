#include "partitioner/bounds/segment_bound.h"

#include <algorithm>
#include <utility>

#include "costmodel/index.h"
#include "partitioner/costs/heaviest_path.h"

namespace stagecraft::partitioner {
namespace {

constexpr Seconds kNever(1e100);
/// Rounding of sums that are taken in different orders.
constexpr double kRounding = 1e-9;

}  // namespace

std::optional<SegmentBound> SegmentBound::of(const PipelineCosts& costs) {
  if (!costs.waits() || costs.schedule().replicated || costs.dag().nodes == 0) return std::nullopt;
  const std::vector<int> path = computation_path(costs);
  const double m = costs.microbatches();
  std::vector<Cuts> levels;
  for (std::size_t level = 0; level < costs.levels(); ++level) {
    const double devices = costs.devices_below(level);
    Cuts& cuts = levels.emplace_back(path.size() + 1);
    for (std::size_t i = 0; i < path.size(); ++i) {
      const NodeCosts& node = costs.node(path[i]);
      Cut& next = cuts[i + 1];
      next.computed = cuts[i].computed + m * node.least / devices;
      next.way = cuts[i].way + node.forward + node.least_return;
      if (i + 1 == path.size()) continue;
      const PathHop hop = path_hop(costs, path[i], path[i + 1], level);
      next.message = hop.forward + hop.back;
      next.port = (m - 1) * hop.port;
    }
  }
  return SegmentBound(std::move(levels));
}

std::optional<bool> SegmentBound::refutes(Seconds time, const std::function<bool()>& stop) const {
  for (const Cuts& cuts : levels_) {
    const std::optional<bool> refuted = refutes(cuts, time * (1 + kRounding), stop);
    if (!refuted || *refuted) return refuted;
  }
  return false;
}

std::optional<bool> SegmentBound::refutes(const Cuts& cuts, Seconds most, const std::function<bool()>& stop) {
  const Cut& all = cuts.back();
  // For a segment that begins at a cut, the least of before and after it together.
  std::vector<Seconds> around(cuts.size(), kNever);
  around.front() = Seconds(0);
  for (std::size_t begin = 0; begin + 1 < cuts.size(); ++begin) {
    if (around[begin] >= kNever) continue;
    if (stop()) return std::nullopt;
    for (std::size_t end = begin + 1; end < cuts.size(); ++end) {
      const Cut& cut = cuts[end];
      if (around[begin] + cut.computed - cuts[begin].computed > most) break;
      if (end + 1 == cuts.size()) return false;
      const Seconds next = around[begin] + cut.way - cuts[begin].way + cut.message;
      if (next + all.way - cut.way + cut.port <= most) around[end] = std::min(around[end], next);
    }
  }
  return true;
}

}  // namespace stagecraft::partitioner
