#include "partitioner/bounds/segment_bound.h"

#include <algorithm>
#include <utility>

#include "costmodel/index.h"
#include "partitioner/costs/heaviest_path.h"
#include "partitioner/costs/round_trips.h"

namespace stagecraft::partitioner {
namespace {

constexpr Seconds kNever(1e100);
/// Rounding of sums that are taken in different orders.
constexpr double kRounding = 1e-9;

}  // namespace

std::optional<SegmentBound> SegmentBound::of(const PipelineCosts& costs) {
  if (!costs.waits() || !costs.schedule().equal_replicas || costs.dag().nodes == 0) return std::nullopt;
  const std::vector<int> path = computation_path(costs);
  SegmentBound out;
  out.microbatches_ = costs.microbatches();
  for (std::size_t level = 0; level < costs.levels(); ++level) {
    out.devices_below_.push_back(costs.devices_below(level));
    Cuts& cuts = out.levels_.emplace_back(path.size() + 1);
    for (std::size_t i = 0; i < path.size(); ++i) {
      const NodeCosts& node = costs.node(path[i]);
      Cut& next = cuts[i + 1];
      next.computed = cuts[i].computed + node.least;
      next.way = cuts[i].way + node.forward + node.least_return;
      if (i + 1 == path.size()) continue;
      const PathHop hop = path_hop(costs, path[i], path[i + 1], level);
      next.message = hop.forward + hop.back;
      next.port = hop.port;
    }
  }
  Seconds computed;
  Seconds updates;
  Bytes untied;
  for (int v = 0; v < costs.dag().nodes; ++v) {
    computed += costs.node(v).least;
    updates += costs.node(v).update;
    untied += costs.node(v).untied;
  }
  for (const ReplicaRange& range :
       replica_ranges(std::min(costs.devices(), costs.microbatches()), costs.microbatches())) {
    const int chunks = least_chunks(costs.schedule());
    if (!costs.can_run({{}, std::vector(to_index(chunks), range.first), chunks})) continue;
    // Buckets are summed while other stages of the device compute. The line lies below the sums of each stage.
    const ReduceLine line = costs.buckets_are_hidden() ? ReduceLine{} : costs.reduce_line(untied, range.first);
    const Seconds sums =
        line.per_byte * untied + std::min(line.fixed, Seconds(0)) * static_cast<double>(costs.dag().nodes);
    const double share = static_cast<double>(range.share);
    const Seconds all = computed * share + updates + std::max(sums, Seconds(0));
    out.replicas_.push_back({range.first > 1, share, all * (static_cast<double>(range.first) / costs.devices())});
  }
  return out;
}

std::optional<bool> SegmentBound::refutes(Seconds time, const std::function<bool()>& stop) const {
  const Seconds most = time * (1 + kRounding);
  for (const Replicas& replicas : replicas_) {
    bool refuted = replicas.mean > most;
    for (std::size_t level = 0; level < (replicas.several ? 1 : levels_.size()) && !refuted; ++level) {
      const double messages = level == 0 ? replicas.share : microbatches_;
      const std::optional<bool> answer =
          refutes(levels_[level], messages / devices_below_[level], messages - 1, most, stop);
      if (!answer) return answer;
      refuted = *answer;
    }
    if (!refuted) return false;
  }
  return true;
}

/// `computed`: the microbatches of one device.
std::optional<bool> SegmentBound::refutes(const Cuts& cuts, double computed, double messages, Seconds most,
                                          const std::function<bool()>& stop) {
  const Cut& all = cuts.back();
  // For a segment that begins at a cut, the least of before and after it together.
  std::vector<Seconds> around(cuts.size(), kNever);
  around.front() = Seconds(0);
  for (std::size_t begin = 0; begin + 1 < cuts.size(); ++begin) {
    if (around[begin] >= kNever) continue;
    if (stop()) return std::nullopt;
    for (std::size_t end = begin + 1; end < cuts.size(); ++end) {
      const Cut& cut = cuts[end];
      if (around[begin] + (cut.computed - cuts[begin].computed) * computed > most) break;
      if (end + 1 == cuts.size()) return false;
      const Seconds next = around[begin] + cut.way - cuts[begin].way + cut.message;
      if (next + all.way - cut.way + cut.port * messages <= most) around[end] = std::min(around[end], next);
    }
  }
  return true;
}

}  // namespace stagecraft::partitioner
