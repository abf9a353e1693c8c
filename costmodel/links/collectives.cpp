#include "costmodel/links/collectives.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>

#include "costmodel/index.h"

namespace stagecraft {
namespace {

void check_ranks(const std::string& what, int ranks) {
  if (ranks < 1) throw std::invalid_argument(what + " of " + std::to_string(ranks) + " ranks, must be at least 1");
}

/// Steps of a ring, of which each moves a rank's share.
Seconds ring_time(double steps, Bytes data, int ranks, const Link& link) {
  return steps * (link.latency + data / link.bandwidth / ranks);
}

std::optional<Seconds> measured(const std::map<int, Curve>& curves, int ranks, Bytes data) {
  const auto curve = curves.find(ranks);
  if (curve == curves.end()) return std::nullopt;
  return interpolate(curve->second, data);
}

std::optional<Seconds> measured_halves(Bytes data, int ranks, const Link& link) {
  const auto scatter = measured(link.reduce_scatter, ranks, data);
  const auto gather = measured(link.all_gather, ranks, data);
  if (!scatter || !gather) return std::nullopt;
  return *scatter + *gather;
}

/// A group of some devices at one level.
struct LevelGroup {
  const Link* link;
  int ranks;   ///< of the largest group, 2 or more
  Bytes data;  ///< that is left to the level
};

/// The levels that join `devices`, innermost first; each leaves its ranks' share of the data to the next one.
std::vector<LevelGroup> groups_of(const std::string& what, Bytes data, const std::vector<int>& devices,
                                  const Topology& topology) {
  if (devices.empty()) throw std::invalid_argument(what + " of no devices");
  std::vector<LevelGroup> out;
  double share = 1;
  for (int level = 0; level < to_int(topology.levels.size()); ++level) {
    std::map<int, std::set<int>> members;
    for (const int device : devices)
      members[group_below(topology, level + 1, device)].insert(group_below(topology, level, device));
    std::size_t largest = 1;
    for (const auto& [group, parts] : members) largest = std::max(largest, parts.size());
    if (largest == 1) continue;
    out.push_back({&topology.levels[to_index(level)].link, to_int(largest),
                   Bytes(static_cast<std::int64_t>(static_cast<double>(data.value) * share))});
    share /= static_cast<double>(largest);
  }
  return out;
}

/// A reduce-scatter or an all-gather, the two halves of an all-reduce: the measured `curves` for a level's ranks, else
/// the ring, which takes both the same time.
Seconds half_time(const std::string& what, std::map<int, Curve> Link::* curves, Bytes data,
                  const std::vector<int>& devices, const Topology& topology) {
  Seconds total;
  for (const LevelGroup& group : groups_of(what, data, devices, topology))
    total += measured(group.link->*curves, group.ranks, group.data)
                 .value_or(ring_time(group.ranks - 1.0, group.data, group.ranks, *group.link));
  return total;
}

/// Reduce-scatter and all-gather inside a level that is not the outermost one.
Seconds inner_time(const LevelGroup& group) {
  if (const auto halves = measured_halves(group.data, group.ranks, *group.link)) return *halves;
  return level_all_reduce_time(group.data, group.ranks, *group.link, false);
}

}  // namespace

Seconds ring_all_reduce_time(Bytes data, int ranks, const Link& link) {
  check_ranks("an all-reduce", ranks);
  return ring_time(2.0 * (ranks - 1), data, ranks, link);
}

Seconds ring_reduce_scatter_time(Bytes data, int ranks, const Link& link) {
  check_ranks("a reduce-scatter", ranks);
  return ring_time(ranks - 1.0, data, ranks, link);
}

Seconds ring_all_gather_time(Bytes data, int ranks, const Link& link) {
  check_ranks("an all-gather", ranks);
  return ring_time(ranks - 1.0, data, ranks, link);
}

Seconds tree_all_reduce_time(Bytes data, int ranks, const Link& link) {
  check_ranks("an all-reduce", ranks);
  if (ranks == 1) return Seconds(0);
  const double height = std::bit_width(static_cast<unsigned>(ranks) - 1);  // ceil(log2 n)
  return 2 * height * link.latency + 2.0 * (data / link.bandwidth);
}

Seconds level_all_reduce_time(Bytes data, int ranks, const Link& link, bool tree) {
  if (const auto whole = measured(link.all_reduce, ranks, data)) return *whole;
  if (const auto halves = measured_halves(data, ranks, link)) return *halves;
  const Seconds ring = ring_all_reduce_time(data, ranks, link);
  return tree ? std::min(ring, tree_all_reduce_time(data, ranks, link)) : ring;
}

bool may_use_trees(const Topology& topology) { return topology.device.kind == DeviceKind::Gpu; }

Seconds all_reduce_time(Bytes data, const std::vector<int>& devices, const Topology& topology) {
  const std::vector<LevelGroup> groups = groups_of("an all-reduce", data, devices, topology);
  Seconds total;
  for (const LevelGroup& group : groups) {
    total += &group == &groups.back()
                 ? level_all_reduce_time(group.data, group.ranks, *group.link, may_use_trees(topology))
                 : inner_time(group);
  }
  return total;
}

Seconds reduce_scatter_time(Bytes data, const std::vector<int>& devices, const Topology& topology) {
  return half_time("a reduce-scatter", &Link::reduce_scatter, data, devices, topology);
}

Seconds all_gather_time(Bytes data, const std::vector<int>& devices, const Topology& topology) {
  return half_time("an all-gather", &Link::all_gather, data, devices, topology);
}

}  // namespace stagecraft
