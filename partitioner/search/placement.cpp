#include "partitioner/search/placement.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "costmodel/index.h"
#include "partitioner/search/search_tuning.h"

namespace stagecraft::partitioner {
namespace {

using Devices = std::vector<std::vector<int>>;

Devices in_order(const std::vector<int>& replicas) {
  Devices out;
  int next = 0;
  for (const int count : replicas) {
    out.emplace_back(to_index(count));
    std::iota(out.back().begin(), out.back().end(), next);
    next += count;
  }
  return out;
}

/// Stages in groups of the innermost level, the largest first; absent if a stage does not fit into what is left of one.
std::optional<Devices> undivided(const Topology& topology, const std::vector<int>& replicas) {
  const int size = topology.levels.front().count;
  const int groups = device_count(topology) / size;
  std::vector<int> used(to_index(groups), 0);
  std::vector<int> order(replicas.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int a, int b) { return replicas[to_index(a)] > replicas[to_index(b)]; });
  Devices out(replicas.size());
  for (const int s : order) {
    int left = replicas[to_index(s)];
    for (int g = 0; g < groups && left > 0; ++g) {
      int& taken = used[to_index(g)];
      const int room = size - taken;
      // Whole groups of a stage that is larger than one; then the first group that has room for the rest.
      const int take = std::min(left, size);
      if (room < take) continue;
      for (int i = 0; i < take; ++i) out[to_index(s)].push_back(g * size + taken++);
      left -= take;
    }
    if (left > 0) return std::nullopt;
  }
  return out;
}

/// Group after group of the stages from `begin` to `end` on consecutive devices; replica j is in group j mod `groups`.
void add_groups(const std::vector<int>& replicas, std::size_t begin, std::size_t end, int groups, int& next,
                Devices& out) {
  for (int group = 0; group < groups; ++group) {
    for (std::size_t s = begin; s < end; ++s) {
      out[s].resize(to_index(replicas[s]));
      for (int j = group; j < replicas[s]; j += groups) out[s][to_index(j)] = next++;
    }
  }
}

/// In each run of stages with equal numbers of replicas, replica j of all of them on consecutive devices.
Devices side_by_side(const std::vector<int>& replicas) {
  Devices out(replicas.size());
  int next = 0;
  for (std::size_t begin = 0; begin < replicas.size();) {
    std::size_t end = begin;
    while (end < replicas.size() && replicas[end] == replicas[begin]) ++end;
    add_groups(replicas, begin, end, replicas[begin], next, out);
    begin = end;
  }
  return out;
}

/// Replicas that compute the same microbatches on consecutive devices.
Devices by_microbatch(const std::vector<int>& replicas) {
  Devices out(replicas.size());
  const int groups = std::accumulate(replicas.begin(), replicas.end(), 0, std::gcd<int, int>);
  int next = 0;
  add_groups(replicas, 0, replicas.size(), groups, next, out);
  return out;
}

constexpr const char* kPlacedOrigin = ", placed";

}  // namespace

std::vector<Devices> placements(const Topology& topology, const std::vector<int>& replicas, int chunks,
                                Placement placement) {
  const std::vector<int> positions(replicas.begin(),
                                   replicas.begin() + static_cast<std::ptrdiff_t>(replicas.size() / to_index(chunks)));
  std::vector<Devices> out;
  const Devices ordered = in_order(positions);
  for (auto devices : {undivided(topology, positions), std::optional(side_by_side(positions)),
                       std::optional(by_microbatch(positions))}) {
    if (!devices || *devices == ordered || std::ranges::find(out, *devices) != out.end()) continue;
    out.push_back(std::move(*devices));
  }
  for (Devices& devices : out) {
    for (int s = to_int(positions.size()); s < to_int(replicas.size()); ++s)
      devices.push_back(Devices::value_type(devices[to_index(position_of(s, to_int(positions.size()), placement))]));
  }
  return out;
}

/// The plan's stages on devices in order.
Candidate PlacedPlans::candidate_of(const RankedPlan& ranked) const {
  Candidate out;
  out.partition = partition_of(graph_, ranked.plan);
  out.chunks = ranked.plan.chunks;
  out.steady_state = ranked.plan.steady_state;
  return out;
}

void PlacedPlans::try_placements(const std::function<bool()>& stop) {
  if (!is_useful()) return;
  const auto key_of = [](const Candidate& candidate) {
    return Key(candidate.partition.stage_of_layer, candidate.partition.replicas);
  };
  std::vector<std::pair<Candidate, std::string>> tries;
  for (const RankedPlan& ranked : plans_.sorted()) {
    if (!ranked.fits || tries.size() >= SearchTuning::kMostPlaced) break;
    if (ranked.origin.ends_with(kPlacedOrigin)) continue;
    Candidate candidate = candidate_of(ranked);
    if (!placed_.contains(key_of(candidate))) tries.emplace_back(std::move(candidate), ranked.origin);
  }
  for (auto& [candidate, origin] : tries) {
    const Key key = key_of(candidate);
    if (!placed_.insert(key).second) continue;
    for (auto& devices :
         placements(topology_, candidate.partition.replicas, candidate.chunks, placement_of(constraints_.plan))) {
      if (stop()) {
        placed_.erase(key);
        return;
      }
      candidate.devices = std::move(devices);
      plans_.predict(origin + kPlacedOrigin, candidate);
    }
  }
}

void PlacedPlans::improve(const SearchContext& context, const std::vector<Split>& starts,
                          const std::function<bool()>& stop) {
  if (!is_useful()) return;
  const PipelineCosts& costs = context.costs;
  const auto each_placed = [&](const Split& split, Seconds upper_bound, const auto& visit) {
    for (auto& devices : placements(topology_, split.replicas, split.chunks, costs.schedule().placement)) {
      const std::optional<Seconds> bound = costs.lower_bound(split, devices, upper_bound);
      if (bound && *bound < upper_bound) visit(*bound, std::move(devices));
    }
  };
  const SplitValue bound = [&](const Split& split, Seconds upper_bound) {
    std::optional<Seconds> out;
    each_placed(split, upper_bound, [&](Seconds time, auto&&) { out = std::min(out.value_or(time), time); });
    return out;
  };
  const SplitValue step = [&](const Split& split, Seconds upper_bound) -> std::optional<Seconds> {
    const auto [known, fresh] = steps_.try_emplace(Key(split.stage_of_node, split.replicas));
    std::optional<Seconds>& out = known->second;
    if (fresh) {
      each_placed(split, upper_bound, [&](Seconds time, StageDevices devices) {
        if (out && time >= *out) return;
        Candidate candidate = candidate_of_split(graph_, costs, constraints_, split);
        candidate.devices = std::move(devices);
        const std::optional<Seconds> predicted = plans_.predict(plans_.origin() + kPlacedOrigin, candidate);
        if (predicted && (!out || *predicted < *out)) out = predicted;
      });
    }
    return out && *out < upper_bound ? out : std::nullopt;
  };
  std::vector<std::pair<Seconds, Split>> found;
  const auto add = [&](const Split& split) {
    if (const auto time = bound(split, plans_.best().value_or(kForever))) found.emplace_back(*time, split);
  };
  for (const Split& split : starts) add(split);
  const Movable movable = context.movable(costs.devices());
  for (const RankedPlan& ranked : plans_.sorted()) {
    if (ranked.fits && ranked.origin.ends_with(kPlacedOrigin)) {
      add(costs.split_of(candidate_of(ranked).partition, ranked.plan.chunks));
      break;
    }
  }
  std::ranges::stable_sort(found, {}, [](const auto& entry) { return entry.first; });
  if (found.size() > SearchTuning::kMostPlaced) found.resize(SearchTuning::kMostPlaced);
  for (const auto& [time, split] : found) {
    if (stop()) return;
    (void)step(split, plans_.best().value_or(kForever));
    (void)step(improved(costs, split, movable, bound, stop), plans_.best().value_or(kForever));
    (void)improved(costs, split, movable, step, stop);
  }
}

}  // namespace stagecraft::partitioner
