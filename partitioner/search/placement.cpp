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

/// Replica j of all stages on consecutive devices; absent if their numbers differ.
std::optional<Devices> side_by_side(const std::vector<int>& replicas) {
  const int stages = to_int(replicas.size());
  if (std::ranges::any_of(replicas, [&](int r) { return r != replicas.front(); })) return std::nullopt;
  Devices out(replicas.size());
  for (int s = 0; s < stages; ++s) {
    for (int j = 0; j < replicas.front(); ++j) out[to_index(s)].push_back(j * stages + s);
  }
  return out;
}

constexpr const char* kPlacedOrigin = ", placed";

}  // namespace

std::vector<Devices> placements(const Topology& topology, const std::vector<int>& replicas, int chunks) {
  const std::vector<int> positions(replicas.begin(),
                                   replicas.begin() + static_cast<std::ptrdiff_t>(replicas.size() / to_index(chunks)));
  std::vector<Devices> out;
  const Devices ordered = in_order(positions);
  for (auto devices : {undivided(topology, positions), side_by_side(positions)}) {
    if (!devices || *devices == ordered || std::ranges::find(out, *devices) != out.end()) continue;
    out.push_back(std::move(*devices));
  }
  for (Devices& devices : out) {
    for (std::size_t s = positions.size(); s < replicas.size(); ++s)
      devices.push_back(Devices::value_type(devices[s - positions.size()]));
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
    for (auto& devices : placements(topology_, candidate.partition.replicas, candidate.chunks)) {
      if (stop()) {
        placed_.erase(key);
        return;
      }
      candidate.devices = std::move(devices);
      plans_.predict(origin + kPlacedOrigin, candidate);
    }
  }
}

}  // namespace stagecraft::partitioner
