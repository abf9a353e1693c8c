#include "partitioner/exact/equal_shares.h"

#include <algorithm>
#include <numeric>

#include "costmodel/index.h"
#include "partitioner/exact/round_trips.h"

namespace stagecraft::partitioner {
namespace {

/// Sets of layers that are all considered; of a graph with more, some cuts of one order of its layers.
constexpr std::size_t kMostSets = 300;
constexpr std::size_t kMostCuts = 200;
/// Limits of the slowest stage's time, as factors of the least.
constexpr double kSlower[] = {1 + 1e-9, 1.03, 1.1, 1.25, 1.5, 1e9};
/// With chunks, what a stage may hold, as factors of an equal share of its device's memory; the largest that fits.
constexpr double kShares[] = {1e9, 1.5, 1.25, 1.1, 1, 0.9};

Seconds larger(Seconds a, Seconds b) { return a < b ? b : a; }

}  // namespace

EqualShares::EqualShares(const PipelineCosts& costs) : costs_(costs) {
  for (int v = 0; v < costs.dag().nodes; ++v) all_ += costs.node(v).least;
  const Dag& dag = costs.dag();
  lattice_ = Lattice::of(reversed(dag), kMostSets);
  if (lattice_) {
    groups_.resize(to_index(dag.nodes));
    for (int v = 0; v < dag.nodes; ++v) groups_[to_index(v)] = {v};
  } else {
    group_nodes();
    Dag line{to_int(groups_.size()), {}};
    for (int g = 1; g < line.nodes; ++g) line.edges.emplace_back(g, g - 1);
    lattice_ = Lattice::of(line, groups_.size() + 1);
  }
  find_segments();
}

/// Divides the nodes in their order into groups of about equal computation, between which the messages are smallest.
void EqualShares::group_nodes() {
  const int nodes = costs_.dag().nodes;
  std::vector<Seconds> begins(to_index(nodes) + 1), ends(to_index(nodes) + 1);
  for (const CrossingValue& value : costs_.values()) {
    begins[to_index(value.producer) + 1] += value.least_forward + value.least_back;
    ends[to_index(std::ranges::max(value.readers)) + 1] += value.least_forward + value.least_back;
  }
  std::size_t bucket = 0;
  std::vector<std::pair<Seconds, int>> cuts{{Seconds(0), 0}};  // message, first node after it; the first is the start
  Seconds crossing, done;
  for (int v = 0; v + 1 < nodes; ++v) {
    done += costs_.node(v).least;
    crossing += begins[to_index(v) + 1] - ends[to_index(v) + 1];
    const auto in = static_cast<std::size_t>(static_cast<double>(kMostCuts - 1) *
                                             (all_ > Seconds(0) ? done / all_ : 1.0 * v / nodes));
    if (cuts.size() == 1 || in != bucket) {
      cuts.emplace_back(crossing, v + 1);
    } else if (crossing < cuts.back().first) {
      cuts.back() = {crossing, v + 1};
    }
    bucket = in;
  }
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const int end = i + 1 < cuts.size() ? cuts[i + 1].second : nodes;
    groups_.emplace_back(to_index(end - cuts[i].second));
    std::iota(groups_.back().begin(), groups_.back().end(), cuts[i].second);
  }
}

void EqualShares::find_segments() {
  std::vector<CutTensor> messages;
  std::vector<CutTensor> received;
  for (const CrossingValue& value : costs_.values()) {
    messages.push_back({value.producer, value.readers, value.least_forward + value.least_back});
    received.push_back({value.producer, value.readers, Seconds(static_cast<double>(value.bytes.value))});
  }
  CutCosts message(costs_.dag().nodes, std::move(messages));
  CutCosts bytes(costs_.dag().nodes, std::move(received));
  segments_.resize(lattice_->count());
  DownWalk walk(*lattice_);
  Segment now;
  std::vector<Segment> before;
  const auto add = [&](int group) {
    before.push_back(now);
    for (const int v : groups_[to_index(group)]) {
      const NodeCosts& node = costs_.node(v);
      now.time += node.least;
      now.backward += node.least - node.forward;
      now.update += node.update;
      now.untied += node.untied;
      now.bytes += node.bytes;
      now.workspace = std::max(now.workspace - node.bytes.per_microbatch, node.workspace);
      message.add(v);
      bytes.add(v);
    }
  };
  const auto remove = [&](int group) {
    now = before.back();
    before.pop_back();
    for (std::size_t i = 0; i < groups_[to_index(group)].size(); ++i) {
      message.remove_last();
      bytes.remove_last();
    }
  };
  for (std::uint32_t set = 1; set < lattice_->count(); ++set) {
    now = {};
    message.clear();
    bytes.clear();
    walk.each_subset(set, add, remove, [&](std::uint32_t below) {
      Segment segment = now;
      segment.below = below;
      segment.message = message.incoming();
      segment.bytes.per_microbatch += Bytes(static_cast<std::int64_t>(bytes.incoming().value));
      segments_[set].push_back(segment);
      return Descend::Yes;
    });
  }
}

/// Of each stage.
std::vector<EqualShares::Load> EqualShares::loads(const EqualShape& shape, std::optional<Bytes> limit) const {
  Split split;
  split.replicas.assign(to_index(shape.stages), shape.replicas);
  split.chunks = shape.chunks;
  std::vector<Load> out;
  for (const int held : costs_.held(split)) out.push_back({held, shape.replicas, costs_.share(shape.replicas), limit});
  return out;
}

bool EqualShares::fits(const Segment& segment, const Load& load) const {
  return !load.limit || costs_.least_peak(segment.bytes, load.held, load.replicas, segment.workspace) <= *load.limit;
}

/// The time of the slowest stage where that is shortest.
std::optional<Seconds> EqualShares::least_slowest(const std::vector<Load>& loads) const {
  constexpr Seconds kNever(1e100);
  std::vector<Seconds> later(lattice_->count(), kNever);
  later[0] = Seconds(0);
  for (std::size_t stage = loads.size(); stage-- > 0;) {
    std::vector<Seconds> here(lattice_->count(), kNever);
    for (std::uint32_t set = 1; set < lattice_->count(); ++set) {
      if (stage == 0 && set != lattice_->full()) continue;
      for (const Segment& segment : segments_[set]) {
        const Seconds slowest = larger(segment.time, later[segment.below]);
        if (slowest < here[set] && fits(segment, loads[stage])) here[set] = slowest;
      }
    }
    later = std::move(here);
  }
  const Seconds out = later[lattice_->full()];
  return out < kNever ? std::optional(out) : std::nullopt;
}

/// The split with the smallest bound whose slowest stage takes no longer than `slowest`.
std::optional<Split> EqualShares::shortest(const EqualShape& shape, const std::vector<Load>& loads,
                                           Seconds slowest) const {
  constexpr Seconds kNever(1e100);
  std::vector<std::vector<Seconds>> bound(loads.size() + 1, std::vector<Seconds>(lattice_->count(), kNever));
  std::vector<std::vector<std::uint32_t>> next(loads.size(), std::vector<std::uint32_t>(lattice_->count(), 0));
  bound[loads.size()][0] = Seconds(0);
  for (std::size_t stage = loads.size(); stage-- > 0;) {
    const Load& load = loads[stage];
    const std::vector<Seconds>& later = bound[stage + 1];
    for (std::uint32_t set = 1; set < lattice_->count(); ++set) {
      if (stage == 0 && set != lattice_->full()) continue;
      Seconds& here = bound[stage][set];
      for (const Segment& segment : segments_[set]) {
        if (segment.time > slowest || later[segment.below] >= kNever) continue;
        Seconds time = larger(segment.time * load.share, segment.time + later[segment.below]) + segment.message;
        if (time >= here) continue;
        const Seconds reduce = costs_.least_reduce(segment.untied, load.replicas, segment.backward) + segment.update;
        time = larger(time, segment.time * load.share + reduce + segment.message);
        if (time >= here || !fits(segment, load)) continue;
        here = time;
        next[stage][set] = segment.below;
      }
    }
  }
  std::uint32_t set = lattice_->full();
  if (bound[0][set] >= kNever) return std::nullopt;
  Split out;
  out.replicas.assign(to_index(shape.stages), shape.replicas);
  out.chunks = shape.chunks;
  out.stage_of_node.assign(to_index(costs_.dag().nodes), 0);
  for (std::size_t stage = 0; stage < loads.size(); ++stage) {
    const std::uint32_t below = next[stage][set];
    for (const int group : lattice_->members(set, below)) {
      for (const int v : groups_[to_index(group)]) out.stage_of_node[to_index(v)] = to_int(stage);
    }
    set = below;
  }
  return out;
}

std::vector<Split> EqualShares::splits(const EqualShape& shape, std::optional<Bytes> limit) {
  std::vector<Split> out;
  if (shape.stages > to_int(groups_.size())) return out;
  const bool is_shared = limit && shape.chunks > 1;
  for (const double share : kShares) {
    std::optional<Bytes> of_stage = limit;
    if (is_shared) {
      const double most = static_cast<double>(limit->value) * std::min(1.0, share / shape.chunks);
      of_stage = Bytes(static_cast<std::int64_t>(most));
    }
    const std::vector<Load> all = loads(shape, of_stage);
    const std::optional<Seconds> slowest = least_slowest(all);
    for (const double slower : kSlower) {
      if (!slowest) break;
      std::optional<Split> split = shortest(shape, all, *slowest * slower);
      if (split && std::ranges::find(out, *split) == out.end()) out.push_back(std::move(*split));
    }
    if (!is_shared) break;
  }
  return out;
}

std::optional<Seconds> EqualShares::estimate(const EqualShape& shape, std::optional<Bytes> limit) {
  if (shape.stages > to_int(groups_.size())) return std::nullopt;
  const std::optional<Seconds> slowest = least_slowest(loads(shape, limit));
  if (!slowest) return std::nullopt;
  return all_ * (1.0 / shape.chunks) + *slowest * (costs_.share(shape.replicas) * shape.chunks - 1);
}

}  // namespace stagecraft::partitioner
