#include "partitioner/search/equal_shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "costmodel/index.h"
#include "partitioner/costs/round_trips.h"
#include "partitioner/search/search_tuning.h"

namespace stagecraft::partitioner {
namespace {

/// The copies of a message in memory beside the received one: the awaited one, its gradient, and those that
/// memory_bound counts.
constexpr std::int64_t kCopiesReceived = 4;
constexpr std::int64_t kCopiesSent = 3;
constexpr double kRounding = 1e-9;
/// More bytes than any device holds.
constexpr Bytes kTooMany{std::int64_t{1} << 60};

/// The sum of the messages, of `time_of` each, that cross the cut before each of so many places; `place`: by node.
template <class TimeOf>
std::vector<Seconds> crossing_messages(const PipelineCosts& costs, const std::vector<std::size_t>& place,
                                       std::size_t places, TimeOf time_of) {
  std::vector<Seconds> out(places + 1);
  for (const CrossingValue& value : costs.values()) {
    std::size_t last = 0;
    for (const int reader : value.readers) last = std::max(last, place[to_index(reader)]);
    out[place[to_index(value.producer)] + 1] += time_of(value);
    out[last + 1] -= time_of(value);
  }
  std::partial_sum(out.begin(), out.end(), out.begin());
  return out;
}

}  // namespace

EqualShares::EqualShares(const PipelineCosts& costs) : costs_(costs) {
  for (int v = 0; v < costs.dag().nodes; ++v) {
    all_ += costs.node(v).least;
    update_ += costs.node(v).update;
    untied_ += costs.node(v).untied;
  }
  line_ = cuts_of_line(SearchTuning::kMostLineCuts);
  if (line_.groups.size() > SearchTuning::kFewLineCuts) coarse_ = cuts_of_line(SearchTuning::kFewLineCuts);
  const Dag& dag = costs.dag();
  Cuts sets;
  sets.lattice = Lattice::of(reversed(dag), SearchTuning::kMostEqualSets);
  if (!sets.lattice) return;
  is_chain_ = sets.lattice->count() <= to_index(dag.nodes) + 1;
  if (is_chain_) return;
  for (int v = 0; v < dag.nodes; ++v) sets.groups.push_back({v});
  find_segments(sets);
  sets_ = std::move(sets);
}

/// The nodes in the order of the graph's file if every edge goes forward in that order, else in topological order. In
/// files, branches mostly follow each other, so that few messages cross a cut.
std::vector<int> EqualShares::line_of_nodes() const {
  std::vector<int> out(to_index(costs_.dag().nodes));
  std::iota(out.begin(), out.end(), 0);
  const auto is_forward = [&](const auto& edge) {
    return costs_.layer_of_node(edge.first) < costs_.layer_of_node(edge.second);
  };
  if (std::ranges::all_of(costs_.dag().edges, is_forward))
    std::ranges::sort(out, {}, [&](int node) { return costs_.layer_of_node(node); });
  return out;
}

/// At most `most` cuts of the line_of_nodes.
EqualShares::Cuts EqualShares::cuts_of_line(std::size_t most) const {
  Cuts out;
  out.groups = groups_of_line(most);
  Dag line{to_int(out.groups.size()), {}};
  for (int g = 1; g < line.nodes; ++g) line.edges.emplace_back(g, g - 1);
  out.lattice = Lattice::of(line, out.groups.size() + 1);
  out.is_line = true;
  find_segments(out);
  return out;
}

/// Divides the line_of_nodes into at most `most` groups of about equal computation, with the smallest messages between
/// groups; with at most `most` nodes, each node is a group.
std::vector<std::vector<int>> EqualShares::groups_of_line(std::size_t most) const {
  const std::vector<int> line = line_of_nodes();
  std::vector<std::size_t> place(line.size());
  for (std::size_t i = 0; i < line.size(); ++i) place[to_index(line[i])] = i;
  const std::vector<Seconds> crossing = crossing_messages(
      costs_, place, line.size(), [](const CrossingValue& value) { return value.least_forward + value.least_back; });
  std::vector<std::size_t> cuts{0};
  std::size_t bucket = 0;
  Seconds done;
  for (std::size_t i = 1; i < line.size(); ++i) {
    done += costs_.node(line[i - 1]).least;
    const double part = all_ > Seconds(0) ? done / all_ : static_cast<double>(i) / static_cast<double>(line.size());
    const auto in = line.size() <= most ? i : static_cast<std::size_t>(part * static_cast<double>(most - 1));
    if (cuts.size() == 1 || in != bucket) {
      cuts.push_back(i);
    } else if (crossing[i] < crossing[cuts.back()]) {
      cuts.back() = i;
    }
    bucket = in;
  }
  cuts.push_back(line.size());
  std::vector<std::vector<int>> out;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
    out.emplace_back(line.begin() + to_int(cuts[i]), line.begin() + to_int(cuts[i + 1]));
  return out;
}

void EqualShares::find_segments(Cuts& cuts) const {
  std::vector<CutTensor> messages;
  std::vector<CutTensor> received;
  for (const CrossingValue& value : costs_.values()) {
    messages.push_back({value.producer, value.readers, value.least_forward + value.least_back});
    received.push_back({value.producer, value.readers, Seconds(static_cast<double>(value.bytes.value))});
  }
  CutCosts message(costs_.dag().nodes, std::move(messages));
  CutCosts bytes(costs_.dag().nodes, std::move(received));
  cuts.segments.resize(cuts.lattice->count());
  DownWalk walk(*cuts.lattice);
  Segment now;
  std::vector<Segment> before;
  const auto add = [&](int group) {
    before.push_back(now);
    for (const int v : cuts.groups[to_index(group)]) {
      const NodeCosts& node = costs_.node(v);
      now.time += node.least;
      now.backward += node.least - node.forward;
      now.update += node.update;
      now.untied += node.untied;
      now.bytes += node.bytes;
      now.waiting += node.waiting;
      now.workspace.add(v, node.workspace, node.bytes.per_microbatch);
      message.add(v);
      bytes.add(v);
    }
  };
  const auto remove = [&](int group) {
    now = before.back();
    before.pop_back();
    for (std::size_t i = 0; i < cuts.groups[to_index(group)].size(); ++i) {
      message.remove_last();
      bytes.remove_last();
    }
  };
  cuts.left.assign(cuts.lattice->count(), Seconds(0));
  for (std::uint32_t set = 1; set < cuts.lattice->count(); ++set) {
    const Lattice::Cover& cover = cuts.lattice->covers(set).front();
    cuts.left[set] = cuts.left[cover.below];
    for (const int v : cuts.groups[to_index(cover.node)]) cuts.left[set] += costs_.node(v).least;
    now = {};
    message.clear();
    bytes.clear();
    walk.each_subset(set, add, remove, [&](std::uint32_t below) {
      Segment segment = now;
      segment.below = below;
      segment.message = message.incoming();
      const Bytes incoming(static_cast<std::int64_t>(bytes.incoming().value));
      segment.bytes.per_microbatch += incoming;
      segment.messages =
          incoming * kCopiesReceived + Bytes(static_cast<std::int64_t>(bytes.outgoing().value)) * kCopiesSent;
      cuts.segments[set].push_back(segment);
      return Descend::Yes;
    });
  }
}

/// The load of each stage.
std::vector<EqualShares::Load> EqualShares::loads(const EqualShape& shape, const MemoryRule& memory) const {
  Split split;
  split.replicas.assign(to_index(shape.stages), shape.replicas);
  split.chunks = shape.chunks;
  std::vector<Load> out;
  for (const int held : costs_.held(split)) {
    // An alternating schedule holds a microbatch for each stage from this one on; what is held beyond that waits. The
    // first stage does not split its backward.
    const int waits = out.empty() || shape.chunks > 1 ? 0 : std::max(0, held - shape.stages + to_int(out.size()));
    const Bytes besides = memory.besides.empty() ? Bytes(0) : memory.besides[out.size()];
    out.push_back(
        {held, waits, shape.replicas, costs_.share(shape.replicas), memory.limit, memory.with_messages, besides});
  }
  return out;
}

bool EqualShares::fits(const Segment& segment, const Load& load) const {
  if (!load.limit) return true;
  Bytes beside = segment.workspace.most + segment.waiting * load.waiting;
  if (load.with_messages) beside += segment.messages;
  return costs_.least_peak(segment.bytes, load.held, load.replicas, beside, false, load.replicas) + load.besides <=
         *load.limit;
}

/// Whether stages of at most `slowest` can cover the line. If any do, then also the stages that are as long as
/// possible.
bool EqualShares::can_be(const std::vector<Load>& loads, Seconds slowest) const {
  std::uint32_t set = line_.lattice->full();
  for (std::size_t stage = 0; stage < loads.size(); ++stage) {
    const auto others = static_cast<std::uint32_t>(loads.size() - 1 - stage);
    const std::vector<Segment>& all = line_.segments[set];
    auto end = std::ranges::partition_point(
        all, [&](const Segment& segment) { return segment.time <= slowest && segment.below >= others; });
    while (end != all.begin() && !fits(*(end - 1), loads[stage])) --end;
    if (end == all.begin()) return false;
    set = (end - 1)->below;
  }
  return set == 0;
}

/// The least time of the slowest stage along the line.
std::optional<Seconds> EqualShares::least_slowest(const std::vector<Load>& loads) const {
  constexpr double kPrecision = 1e-4;
  Seconds low = all_ * (1 / (1.01 * static_cast<double>(loads.size())));
  Seconds high = all_ * (1 + kPrecision);
  if (!can_be(loads, high)) return std::nullopt;
  while (low * (1 + kPrecision) < high) {
    const Seconds middle = low + (high - low) * 0.5;
    (can_be(loads, middle) ? high : low) = middle;
  }
  return high;
}

/// The same over the cuts `cuts`, where the least time is at most `most`; absent if no split fits.
std::optional<Seconds> EqualShares::least_slowest(const Cuts& cuts, const std::vector<Load>& loads,
                                                  Seconds most) const {
  constexpr Seconds kNever(1e100);
  std::vector<Seconds> later(cuts.lattice->count(), kNever);
  later[0] = Seconds(0);
  for (std::size_t stage = loads.size(); stage-- > 0;) {
    std::vector<Seconds> here(cuts.lattice->count(), kNever);
    for (std::uint32_t set = 1; set < cuts.lattice->count(); ++set) {
      if (!is_within(cuts, set, loads.size(), stage, most)) continue;
      for (const Segment& segment : cuts.segments[set]) {
        const Seconds slowest = std::max(segment.time, later[segment.below]);
        if (slowest <= most && slowest < here[set] && fits(segment, loads[stage])) here[set] = slowest;
      }
    }
    later = std::move(here);
  }
  const Seconds out = later[cuts.lattice->full()];
  return out < kNever ? std::optional(out) : std::nullopt;
}

/// Whether stage number `stage` may begin at the set if no stage takes longer than `slowest`: the stages from this one
/// on can take what is left, and the stages before can take the rest.
bool EqualShares::is_within(const Cuts& cuts, std::uint32_t set, std::size_t stages, std::size_t stage,
                            Seconds slowest) const {
  if (stage == 0) return set == cuts.lattice->full();
  const double before = static_cast<double>(stage);
  return cuts.left[set] * (1 - kRounding) <= slowest * (static_cast<double>(stages) - before) &&
         cuts.left[set] >= all_ * (1 - kRounding) - slowest * before;
}

/// The best split by `aim` whose slowest stage takes at most `slowest`.
std::optional<Split> EqualShares::shortest(const Cuts& cuts, const EqualShape& shape, const std::vector<Load>& loads,
                                           Seconds slowest, Aim aim) const {
  constexpr Seconds kNever(1e100);
  std::vector<std::vector<Seconds>> bound(loads.size() + 1, std::vector<Seconds>(cuts.lattice->count(), kNever));
  std::vector<std::vector<std::uint32_t>> next(loads.size(), std::vector<std::uint32_t>(cuts.lattice->count(), 0));
  bound[loads.size()][0] = Seconds(0);
  for (std::size_t stage = loads.size(); stage-- > 0;) {
    const Load& load = loads[stage];
    const std::vector<Seconds>& later = bound[stage + 1];
    for (std::uint32_t set = 1; set < cuts.lattice->count(); ++set) {
      if (!is_within(cuts, set, loads.size(), stage, slowest)) continue;
      Seconds& here = bound[stage][set];
      std::span<const Segment> candidates = cuts.segments[set];
      if (cuts.is_line) {
        const Seconds least =
            cuts.left[set] * (1 - kRounding) - slowest * static_cast<double>(loads.size() - stage - 1);
        const auto is_short = [&](const Segment& segment) { return segment.time < least; };
        const auto is_in = [&](const Segment& segment) { return segment.time <= slowest; };
        const auto end = std::ranges::partition_point(candidates, is_in);
        candidates = {std::ranges::partition_point(candidates, is_short), end};
      }
      for (const Segment& segment : candidates) {
        if (segment.time > slowest || later[segment.below] >= kNever) continue;
        if (aim != Aim::Short) {
          const double weight = aim == Aim::Early  ? static_cast<double>(stage)
                                : aim == Aim::Late ? static_cast<double>(loads.size() - stage)
                                                   : segment.time.value;
          const Seconds sum = later[segment.below] + segment.time * weight;
          if (sum >= here || !fits(segment, load)) continue;
          here = sum;
          next[stage][set] = segment.below;
          continue;
        }
        const Seconds work = std::max(segment.time, segment.message * 0.5) * load.share;
        Seconds time = std::max(work, segment.time + later[segment.below]) + segment.message;
        if (time >= here) continue;
        const Seconds reduce = costs_.least_reduce(segment.untied, load.replicas, segment.backward) + segment.update;
        time = std::max(time, segment.time * load.share + reduce + segment.message);
        if (time >= here || !fits(segment, load)) continue;
        here = time;
        next[stage][set] = segment.below;
      }
    }
  }
  std::uint32_t set = cuts.lattice->full();
  if (bound[0][set] >= kNever) return std::nullopt;
  Split out;
  out.replicas.assign(to_index(shape.stages), shape.replicas);
  out.chunks = shape.chunks;
  out.stage_of_node.assign(to_index(costs_.dag().nodes), 0);
  for (std::size_t stage = 0; stage < loads.size(); ++stage) {
    std::uint32_t below = next[stage][set];
    if (aim == Aim::Shared) {
      const Seconds share = cuts.left[set] * (1 / static_cast<double>(loads.size() - stage));
      Seconds nearest = kNever;
      for (const Segment& segment : cuts.segments[set]) {
        const Seconds distance = std::max(segment.time - share, share - segment.time);
        if (distance >= nearest || segment.time > slowest || bound[stage + 1][segment.below] >= kNever) continue;
        if (!fits(segment, loads[stage])) continue;
        nearest = distance;
        below = segment.below;
      }
    }
    for (const int group : cuts.lattice->members(set, below)) {
      for (const int v : cuts.groups[to_index(group)]) out.stage_of_node[to_index(v)] = to_int(stage);
    }
    set = below;
  }
  return out;
}

/// Adds the shortest splits under several limits of the slowest stage; `slowest` is the least possible limit.
void EqualShares::add_splits(const Cuts& cuts, const EqualShape& shape, const std::vector<Load>& loads, Seconds slowest,
                             std::vector<Split>& out) const {
  const bool is_small = cuts.lattice->count() <= SearchTuning::kMostEqualSets;
  for (const double slower : std::span(SearchTuning::kSlower)
                                 .first(is_small ? std::size(SearchTuning::kSlower) : SearchTuning::kMostOfMany)) {
    for (const Aim aim : {Aim::Short, Aim::Even, Aim::Early, Aim::Late, Aim::Shared}) {
      if (aim != Aim::Short && slower != SearchTuning::kLeastSlower) continue;
      if (aim == Aim::Late && shape.chunks == 1) continue;
      std::optional<Split> split = shortest(cuts, shape, loads, slowest * slower, aim);
      if (split && std::ranges::find(out, *split) == out.end()) out.push_back(std::move(*split));
    }
  }
}

std::vector<Split> EqualShares::splits(const EqualShape& shape, const MemoryRule& memory) const {
  std::vector<Split> out;
  if (shape.stages > to_int(line_.groups.size())) return out;
  const bool is_shared = memory.limit && shape.chunks > 1;
  for (const double share : SearchTuning::kMemoryShares) {
    MemoryRule of_stage = memory;
    if (is_shared) {
      const double most = static_cast<double>(memory.limit->value) * std::min(1.0, share / shape.chunks);
      of_stage.limit = Bytes(static_cast<std::int64_t>(most));
    }
    const std::vector<Load> all = loads(shape, of_stage);
    const std::optional<Seconds> slowest = least_slowest(all);
    if (slowest) add_splits(line_, shape, all, *slowest, out);
    if (sets_) {
      const auto any = least_slowest(*sets_, all, slowest.value_or(all_) * (1 + kRounding));
      if (any) add_splits(*sets_, shape, all, *any * (1 + kRounding), out);
    }
    if (!is_shared) break;
  }
  return out;
}

std::optional<Seconds> EqualShares::estimate(const EqualShape& shape, const MemoryRule& memory) const {
  if (shape.stages > to_int(line_.groups.size())) return std::nullopt;
  const std::vector<Load> all = loads(shape, memory);
  const std::optional<Seconds> least = least_slowest(all);
  if (!least) return std::nullopt;
  std::optional<Split> split;
  // Few cuts may have no split within memory.
  if (coarse_ && to_index(shape.stages) * 2 <= coarse_->groups.size())
    split = shortest(*coarse_, shape, all, *least * SearchTuning::kEstimateSlower, Aim::Short);
  if (!split) split = shortest(line_, shape, all, *least * SearchTuning::kEstimateSlower, Aim::Short);
  if (!split) return std::nullopt;
  return estimate(*split);
}

/// An estimate of the step of a split into equal shares along the line.
Seconds EqualShares::estimate(const Split& split) const {
  const std::size_t stages = split.replicas.size();
  const std::size_t positions = to_index(positions_of(split));
  std::vector<std::size_t> stage(split.stage_of_node.size());
  std::vector<Seconds> computed(stages);
  std::vector<Seconds> loading(stages);
  for (std::size_t v = 0; v < stage.size(); ++v) {
    stage[v] = to_index(split.stage_of_node[v]);
    const NodeCosts& node = costs_.node(to_int(v));
    computed[stage[v]] += node.least;
    loading[stage[v]] = std::max(loading[stage[v]], node.loading);
  }
  const auto busiest = [&](const std::vector<Seconds>& by_stage) {
    std::vector<Seconds> sums(positions);
    for (std::size_t s = 0; s < stages; ++s) sums[to_index(costs_.position_of(split, to_int(s)))] += by_stage[s];
    return *std::ranges::max_element(sums);
  };
  const int replicas = split.replicas.front();
  const double part = 1.0 / static_cast<double>(stages);
  const Bytes untied(static_cast<std::int64_t>(static_cast<double>(untied_.value) * part));
  std::vector<std::vector<Seconds>> crossing;  // before each stage, by level
  for (std::size_t level = 0; level < costs_.levels(); ++level)
    crossing.push_back(crossing_messages(
        costs_, stage, stages, [&](const CrossingValue& value) { return value.forward[level] + value.back[level]; }));
  const auto placed = [&](int to_next_stage, int to_next_replica) {
    const auto first_device = [&](std::size_t s) { return costs_.position_of(split, to_int(s)) * to_next_stage; };
    std::vector<Seconds> messages(stages);
    for (std::size_t s = 1; s < stages && positions > 1; ++s)
      messages[s] = crossing[costs_.level_of(first_device(s - 1) + to_next_stage - 1, first_device(s))][s];
    // A link carries both directions at once.
    const Seconds slowest = std::max({busiest(computed), busiest(loading), busiest(messages) * 0.5});
    return slowest * costs_.share(replicas) + std::accumulate(messages.begin(), messages.end(), Seconds(0)) +
           costs_.reduce_of_devices(untied, replicas, to_next_replica);
  };
  return all_ * (1.0 / split.chunks) - *std::ranges::max_element(computed) + update_ * part +
         std::min(placed(replicas, 1), placed(1, to_int(positions)));
}

/// The least that one of a device's stages holds when all of them hold the most together. Gradients and the largest
/// workspace may come at other moments.
Bytes EqualShares::need_of_chunk(const Segment& segment, int held, int replicas) const {
  return costs_.least_state(segment.bytes, replicas) + (segment.bytes.per_microbatch + segment.bytes.loaded) * held;
}

std::optional<Seconds> EqualShares::least_busiest(int positions, int replicas, int chunks, Bytes limit,
                                                  const std::function<bool()>& stop) const {
  if (!sets_ && !is_chain_) return Seconds(0);
  const Cuts& cuts = sets_ ? *sets_ : line_;
  Split split;
  split.replicas.assign(to_index(positions * chunks), replicas);
  split.chunks = chunks;
  const std::vector<int> held = costs_.held_together(split);
  const std::vector<int> held_later = chunks == 1 ? costs_.held_later(split, /*splits=*/false) : std::vector<int>();
  // For the stages from one on, by the set that is left: the least that these stages hold together, and the slowest.
  struct Later {
    Bytes together = kTooMany;
    Seconds slowest = kForever;
  };
  std::vector<Later> later(cuts.lattice->count());
  later[0] = {Bytes(0), Seconds(0)};
  for (std::size_t stage = held.size(); stage-- > 0;) {
    if (stop()) return Seconds(0);
    std::vector<Later> here(cuts.lattice->count());
    for (std::uint32_t set = 1; set < cuts.lattice->count(); ++set) {
      for (const Segment& segment : cuts.segments[set]) {
        const Later& rest = later[segment.below];
        if (rest.together >= kTooMany) continue;
        const auto peak = [&](int microbatches, bool beside_gradients) {
          return costs_.least_peak(segment.bytes, microbatches, replicas, segment.workspace.most, beside_gradients,
                                   replicas);
        };
        Bytes need = chunks == 1 ? peak(held[stage], false) : need_of_chunk(segment, held[stage], replicas);
        if (chunks == 1 && held_later[stage] > 0) need = std::max(need, peak(held_later[stage], true));
        if (need > limit) continue;
        here[set].together = std::min(here[set].together, need + rest.together);
        here[set].slowest = std::min(here[set].slowest, std::max(segment.time, rest.slowest));
      }
    }
    later = std::move(here);
  }
  const Later& all = later[cuts.lattice->full()];
  if (all.together > limit * positions) return std::nullopt;
  Seconds low = std::max(all.slowest, all_ * (1.0 / positions));
  std::size_t segments = 0;
  for (const auto& of_set : cuts.segments) segments += of_set.size();
  if (chunks == 1 || segments * held.size() > SearchTuning::kMostGameSegments) return low;
  if (refutes_devices(cuts, held, positions, replicas, limit, kForever)) return std::nullopt;
  for (Seconds high = all_; low * (1 + SearchTuning::kGamePrecision) < high && !stop();) {
    const Seconds middle = (low + high) * 0.5;
    (refutes_devices(cuts, held, positions, replicas, limit, middle) ? low : high) = middle;
  }
  return low;
}

/// Whether no split of several stages per device keeps all devices within `time` for a microbatch and within `limit`.
/// Let l_c be what a split takes of such a limit c, as a part of it. If all l_c <= 1, then so is each weighted mean of
/// them. So no split keeps them if the least weighted mean of any split, which dynamic programming finds, is above 1
/// for some weights. The weights of what the split of the latest weights exceeds grow, as in a matrix game.
bool EqualShares::refutes_devices(const Cuts& cuts, const std::vector<int>& held, int devices, int replicas,
                                  Bytes limit, Seconds time) const {
  const std::size_t positions = to_index(devices);
  const auto position = [&, placement = costs_.schedule().placement](std::size_t stage) {
    return to_index(position_of(to_int(stage), devices, placement));
  };
  const auto part_of_time = [&](const Segment& segment) { return segment.time / time; };
  const auto part_of_limit = [&](const Segment& segment, std::size_t stage) {
    return static_cast<double>(need_of_chunk(segment, held[stage], replicas).value) / static_cast<double>(limit.value);
  };
  constexpr double kImpossible = 1e100;
  std::vector<double> weights(2 * positions, 0.5 / static_cast<double>(positions));  // of times, then of memory
  std::vector<std::vector<const Segment*>> next(held.size(), std::vector<const Segment*>(cuts.lattice->count()));
  for (int turn = 0; turn < SearchTuning::kGameTurns; ++turn) {
    std::vector<double> later(cuts.lattice->count(), kImpossible);
    later[0] = 0;
    for (std::size_t stage = held.size(); stage-- > 0;) {
      std::vector<double> here(cuts.lattice->count(), kImpossible);
      const double of_time = weights[position(stage)];
      const double of_limit = weights[positions + position(stage)];
      for (std::uint32_t set = 1; set < cuts.lattice->count(); ++set) {
        for (const Segment& segment : cuts.segments[set]) {
          if (later[segment.below] >= kImpossible || segment.time > time) continue;
          const double need = part_of_limit(segment, stage);
          const double sum = later[segment.below] + of_time * part_of_time(segment) + of_limit * need;
          if (need > 1 || sum >= here[set]) continue;
          here[set] = sum;
          next[stage][set] = &segment;
        }
      }
      later = std::move(here);
    }
    if (later[cuts.lattice->full()] > 1 + kRounding) return true;
    std::vector<double> parts(2 * positions);
    std::uint32_t set = cuts.lattice->full();
    for (std::size_t stage = 0; stage < held.size(); ++stage) {
      const Segment& segment = *next[stage][set];
      parts[position(stage)] += part_of_time(segment);
      parts[positions + position(stage)] += part_of_limit(segment, stage);
      set = segment.below;
    }
    if (std::ranges::max(parts) <= 1) return false;
    double sum = 0;
    for (std::size_t c = 0; c < weights.size(); ++c)
      sum += weights[c] *= std::exp(SearchTuning::kGameRate * (std::min(parts[c], 2.0) - 1));
    for (double& weight : weights) weight /= sum;
  }
  return false;
}

bool EqualShares::is_possible(const EqualShape& shape, const MemoryRule& memory) const {
  return shape.stages <= to_int(line_.groups.size()) && can_be(loads(shape, memory), all_ * 2);
}

}  // namespace stagecraft::partitioner
