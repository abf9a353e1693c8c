#include "costmodel/links/collectives.h"

#include <algorithm>
#include <bit>
#include <cmath>
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

std::optional<Seconds> measured(const Link& link, Collective collective, int ranks, Bytes data) {
  const auto& curves = curves_of(link, collective);
  const auto curve = curves.find(ranks);
  if (curve == curves.end()) return std::nullopt;
  return interpolate(curve->second, data, link.latency * ring_steps(collective, ranks));
}

std::optional<Seconds> measured_halves(Bytes data, int ranks, const Link& link) {
  const auto scatter = measured(link, Collective::ReduceScatter, ranks, data);
  const auto gather = measured(link, Collective::AllGather, ranks, data);
  if (!scatter || !gather) return std::nullopt;
  return *scatter + *gather;
}

/// A group of some devices at one level.
struct LevelGroup {
  int level;
  const Link* link;
  int ranks;  ///< of the largest group, 2 or more
  int below;  ///< devices in a group of the level below

  /// A rank's share of the data that is left to the level.
  [[nodiscard]] Bytes share(Bytes data) const { return Bytes(data.value / below); }
};

/// The levels that join `devices`, innermost first.
std::vector<LevelGroup> groups_of(const std::vector<int>& devices, const Topology& topology) {
  if (devices.empty()) throw std::invalid_argument("a collective of no devices");
  std::vector<LevelGroup> out;
  int below = 1;
  for (int level = 0; level < to_int(topology.levels.size()); ++level) {
    std::map<int, std::set<int>> members;
    for (const int device : devices)
      members[group_below(topology, level + 1, device)].insert(group_below(topology, level, device));
    std::size_t largest = 1;
    for (const auto& [group, parts] : members) largest = std::max(largest, parts.size());
    if (largest == 1) continue;
    out.push_back({level, &topology.levels[to_index(level)].link, to_int(largest), below});
    below *= to_int(largest);
  }
  return out;
}

int devices_of(const std::vector<LevelGroup>& groups) { return groups.back().ranks * groups.back().below; }

/// Inside one level.
Seconds level_time(Collective collective, Bytes data, const LevelGroup& group, bool trees) {
  const Link& link = *group.link;
  if (collective == Collective::AllReduce) return level_all_reduce_time(data, group.ranks, link, trees);
  return measured(link, collective, group.ranks, data)
      .value_or(ring_time(ring_steps(collective, group.ranks), data, group.ranks, link));
}

/// One level after the other.
Seconds serial_time(Collective collective, Bytes data, const std::vector<LevelGroup>& groups) {
  Seconds total;
  for (const LevelGroup& group : groups) {
    const Bytes share = group.share(data);
    const auto halves = collective == Collective::AllReduce && &group != &groups.back()
                            ? measured_halves(share, group.ranks, *group.link)
                            : std::nullopt;
    total += halves.value_or(level_time(collective, share, group, false));
  }
  return total;
}

/// A level's part of a collective.
struct LevelPart {
  Seconds latency;  ///< of all messages that follow each other
  Seconds moving;   ///< in which its links are busy
};

/// The parts of a measured time inside a level; absent if it was not measured.
std::optional<LevelPart> measured_part(Collective collective, Bytes data, const LevelGroup& group) {
  const auto& curves = curves_of(*group.link, collective);
  const auto curve = curves.find(group.ranks);
  if (curve == curves.end()) return std::nullopt;
  const Seconds declared = group.link->latency * ring_steps(collective, group.ranks);
  const Seconds latency = latency_of(curve->second, declared);
  return LevelPart{latency, std::max(Seconds(0), interpolate(curve->second, data, declared) - latency)};
}

LevelPart operator+(const LevelPart& a, const LevelPart& b) { return {a.latency + b.latency, a.moving + b.moving}; }

std::optional<LevelPart> measured_halves_part(Bytes data, const LevelGroup& group) {
  const auto scatter = measured_part(Collective::ReduceScatter, data, group);
  const auto gather = measured_part(Collective::AllGather, data, group);
  if (!scatter || !gather) return std::nullopt;
  return *scatter + *gather;
}

/// The share of the whole data that a rank of a ring sends in one round.
double ring_share(int ranks) { return (ranks - 1.0) / ranks; }

/// Two activities at once slow each other, as Galvatron measured on GPUs.
constexpr double kOverlapSlowdown = 1.1256;
constexpr double kMostOverlapSlowdown = 1.3;  ///< of what others measured

/// Steps of NCCL's protocols have latencies that differ by as much: 5 to 14 us for trees between hosts, in its tuner.
constexpr double kMostLatency = 2.8;

/// Levels that work at the same time, of which the slowest alone takes `alone`, or `most_alone`.
CollectiveTime slowed(Seconds alone, Seconds most_alone, const std::vector<LevelPart>& levels) {
  Seconds slowest;
  Seconds all;
  for (const LevelPart& level : levels) {
    slowest = std::max(slowest, level.moving);
    all += level.moving;
  }
  const Seconds hidden = all - slowest;
  return {alone + (kOverlapSlowdown - 1) * hidden, alone, most_alone + (kMostOverlapSlowdown - 1) * hidden};
}

/// Pieces of data follow each other through the levels, after as many as fill them.
CollectiveTime pipelined(const std::vector<LevelPart>& levels) {
  Seconds latency;
  Seconds slowest;
  for (const LevelPart& level : levels) {
    latency += level.latency;
    slowest = std::max(slowest, level.moving);
  }
  return slowed(latency + slowest, kMostLatency * latency + slowest, levels);
}

/// A ring over all devices, on which as many chunks go around: the slowest link is always busy, or no chunk ever waits.
CollectiveTime ring_over_levels(Collective collective, Bytes data, const std::vector<LevelGroup>& groups) {
  const int n = devices_of(groups);
  Seconds slowest;
  Seconds way;  // of a chunk, but for latency
  Seconds latency;
  const double rounds = collective == Collective::AllReduce ? 2 : 1;
  std::vector<LevelPart> out;
  for (const LevelGroup& group : groups) {
    const Bytes share = group.share(data);
    LevelPart inside{ring_steps(collective, group.ranks) * group.link->latency,
                     rounds * ring_share(group.ranks) * (share / group.link->bandwidth)};
    // A measured all-reduce of one level may not be a ring.
    std::optional<LevelPart> known;
    if (collective == Collective::AllReduce) known = measured_halves_part(share, group);
    if (!known) known = measured_part(collective, share, group);
    if (known) inside = *known;
    const int rings = n / (group.ranks * group.below);  // of this level that a ring over all devices passes
    const LevelPart part{inside.latency * rings, inside.moving * (ring_share(n) / ring_share(group.ranks))};
    slowest = std::max(slowest, part.moving);
    latency += part.latency;
    way += part.moving * ((group.ranks - 1.0) * rings / (n - 1.0));
    out.push_back(part);
  }
  return slowed(std::max(slowest, latency + way), std::max(slowest, kMostLatency * latency + way), out);
}

double height_of(int ranks) { return std::bit_width(static_cast<unsigned>(ranks) - 1); }  // ceil(log2 n)

constexpr Bytes kPiece = 1_MiB;  ///< that a link of a tree carries before the next level begins
constexpr int kLeastPieces = 4;

/// An all-reduce whose innermost groups reduce, then trees between them.
std::vector<LevelPart> tree_parts(Bytes data, const std::vector<LevelGroup>& groups) {
  std::vector<LevelPart> out;
  for (const LevelGroup& group : groups) {
    const Link& link = *group.link;
    const Bytes share = group.share(data);
    const double messages = 2 * height_of(group.ranks);
    const auto known = measured_part(Collective::AllReduce, share, group);
    if (out.empty()) {
      const bool is_ring =
          ring_all_reduce_time(share, group.ranks, link) < tree_all_reduce_time(share, group.ranks, link);
      auto inside = known ? known : measured_halves_part(share, group);
      if (!inside && is_ring)
        inside = {ring_steps(Collective::AllReduce, group.ranks) * link.latency,
                  2 * ring_share(group.ranks) * (share / link.bandwidth)};
      out.push_back(inside.value_or(LevelPart{messages * link.latency, 2 * (share / link.bandwidth)}));
      continue;
    }
    const double crossings = group.ranks == 2 ? 1 : 2;
    LevelPart part{messages * link.latency, crossings * (share / link.bandwidth)};
    if (known) {
      part.latency = std::min(part.latency, known->latency);
      part.moving = known->moving * (crossings / (2 * ring_share(group.ranks)));
    }
    const double piece = std::min(1.0 / kLeastPieces, share > Bytes(0) ? kPiece / share : 0);
    part.latency += messages * piece * (part.moving / crossings);
    out.push_back(part);
  }
  return out;
}

/// The bandwidth at which a level moves the data of rings.
BytesPerSecond ring_bandwidth(const LevelGroup& group) {
  for (const Collective collective : {Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce}) {
    const auto& curves = curves_of(*group.link, collective);
    const auto curve = curves.find(group.ranks);
    if (curve == curves.end()) continue;
    const CurvePoint& last = curve->second.points.back();
    return (last.bytes / last.time) * (ring_steps(collective, group.ranks) / static_cast<double>(group.ranks));
  }
  return group.link->bandwidth;
}

/// Whether a switch sums inside the level: an all-reduce is faster than its two halves.
bool reduces_in_switch(const LevelGroup& group) {
  const auto curve = group.link->all_reduce.find(group.ranks);
  if (curve == group.link->all_reduce.end()) return false;
  const CurvePoint& last = curve->second.points.back();
  const auto halves = measured_halves(last.bytes, group.ranks, *group.link);
  return halves && last.time < *halves;
}

/// Whether NCCL's tuner takes rings for an all-reduce over several levels: its constants, for messages of protocol
/// "Simple". With two hosts, it does not count the links between them.
bool takes_ring(Bytes data, const std::vector<LevelGroup>& groups) {
  constexpr double kMostPerNic = 48e9;
  const int n = devices_of(groups);
  const int inside = groups.front().ranks;
  const int hosts = n / inside;
  BytesPerSecond rate(kMostPerNic * inside);
  if (hosts == 2) {
    rate = ring_bandwidth(groups.front());
  } else {
    for (std::size_t i = 1; i < groups.size(); ++i)
      rate = std::min(rate, ring_bandwidth(groups[i]) * static_cast<double>(groups[i].below));
  }
  const double outer_steps = 2.0 * hosts;
  const double height = std::bit_width(static_cast<unsigned>(hosts)) - 1;  // floor(log2 n)
  const Seconds ring = Seconds(1.4 * (8.4e-6 + (2.0 * (n - 1) - outer_steps) * 3.4e-6 + outer_steps * 14e-6)) +
                       2 * ring_share(n) * (data / rate);
  if (reduces_in_switch(groups.front())) {
    const BytesPerSecond most((hosts == 2 ? 57.7e9 : 45.5e9) * inside);
    return ring < Seconds(25e-6 + 2 * height * 20.9e-6) + 2.0 * (data / std::min(rate, most));
  }
  return ring < Seconds(8.4e-6 + 2 * ((inside - 1) * 4e-6 + height * 14e-6)) + 2.0 * (data / (rate * 0.92));
}

/// Of what each device sends in an all-to-all of `n` devices, the part for those of its group.
Bytes sent_inside(Bytes data, const LevelGroup& group, int n) {
  return Bytes(static_cast<std::int64_t>(static_cast<double>(data.value) * group.ranks * group.below / n));
}

/// Messages from each device to each other one.
std::vector<LevelPart> all_to_all_parts(Bytes data, const std::vector<LevelGroup>& groups) {
  std::vector<LevelPart> out;
  for (const LevelGroup& group : groups) {
    const Bytes inside = sent_inside(data, group, devices_of(groups));
    out.push_back(measured_part(Collective::AllToAll, inside, group)
                      .value_or(LevelPart{ring_steps(Collective::AllToAll, group.ranks) * group.link->latency,
                                          ring_share(group.ranks) * (inside / group.link->bandwidth)}));
  }
  return out;
}

/// By NCCL over several levels.
CollectiveTime pipelined_time(Collective collective, Bytes data, const std::vector<LevelGroup>& groups) {
  if (collective == Collective::AllToAll) return pipelined(all_to_all_parts(data, groups));
  const bool is_ring = collective != Collective::AllReduce || takes_ring(data, groups);
  return is_ring ? ring_over_levels(collective, data, groups) : pipelined(tree_parts(data, groups));
}

/// The measured curve of just these devices, if they are of several levels.
const Curve* whole_shape(Collective collective, const std::vector<int>& devices,
                         const std::vector<LevelGroup>& groups) {
  if (groups.size() < 2 || devices_of(groups) != to_int(devices.size())) return nullptr;
  const auto& spans = groups.back().link->spans;
  const auto span = spans.find({collective, to_int(devices.size()), groups.back().below});
  return span == spans.end() ? nullptr : &span->second;
}

CollectiveTime exactly(Seconds time) { return {time, time, time}; }

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
  return 2 * height_of(ranks) * link.latency + 2.0 * (data / link.bandwidth);
}

Seconds level_all_reduce_time(Bytes data, int ranks, const Link& link, bool tree) {
  if (const auto whole = measured(link, Collective::AllReduce, ranks, data)) return *whole;
  if (const auto halves = measured_halves(data, ranks, link)) return *halves;
  const Seconds ring = ring_all_reduce_time(data, ranks, link);
  return tree ? std::min(ring, tree_all_reduce_time(data, ranks, link)) : ring;
}

bool uses_nccl(const Topology& topology) { return topology.device.kind == DeviceKind::Gpu; }

CollectiveTime collective_time(Collective collective, Bytes data, const std::vector<int>& devices,
                               const Topology& topology) {
  const std::vector<LevelGroup> groups = groups_of(devices, topology);
  if (groups.empty()) return {};
  const bool nccl = uses_nccl(topology);
  if (groups.size() == 1) return exactly(level_time(collective, data, groups.front(), nccl));
  if (const Curve* const whole = whole_shape(collective, devices, groups)) {
    const Seconds latency = groups.back().link->latency * ring_steps(collective, to_int(devices.size()));
    return exactly(interpolate(*whole, data, latency));
  }
  return nccl ? pipelined_time(collective, data, groups) : exactly(serial_time(collective, data, groups));
}

std::optional<std::vector<CurveUse>> curves_used(Collective collective, Bytes data, const std::vector<int>& devices,
                                                 const Topology& topology, int level) {
  const std::vector<LevelGroup> groups = groups_of(devices, topology);
  const auto group = std::ranges::find(groups, level, &LevelGroup::level);
  if (group == groups.end()) return std::nullopt;
  if (const Curve* const whole = whole_shape(collective, devices, groups)) {
    if (&*group != &groups.back()) return std::nullopt;
    return {{{whole, data}}};
  }
  std::vector<CurveUse> out;
  const Bytes bytes =
      collective == Collective::AllToAll ? sent_inside(data, *group, devices_of(groups)) : group->share(data);
  const auto add = [&](Collective measured) {
    const auto& curves = curves_of(*group->link, measured);
    const auto curve = curves.find(group->ranks);
    if (curve == curves.end()) return false;
    out.push_back({&curve->second, bytes});
    return true;
  };
  const bool has_own = add(collective);
  const bool has_several = groups.size() > 1;
  if (collective == Collective::AllReduce && (has_several || !has_own) &&
      measured_halves(bytes, group->ranks, *group->link)) {
    add(Collective::AllGather);
    add(Collective::ReduceScatter);
  }
  return out;
}

Seconds all_reduce_time(Bytes data, const std::vector<int>& devices, const Topology& topology) {
  return collective_time(Collective::AllReduce, data, devices, topology).time;
}

Seconds reduce_scatter_time(Bytes data, const std::vector<int>& devices, const Topology& topology) {
  return collective_time(Collective::ReduceScatter, data, devices, topology).time;
}

Seconds all_gather_time(Bytes data, const std::vector<int>& devices, const Topology& topology) {
  return collective_time(Collective::AllGather, data, devices, topology).time;
}

CollectiveTime neighbour_exchange_time(Bytes data, const std::vector<int>& devices, const Topology& topology) {
  constexpr int kMostWithTwoChannels = 64;
  constexpr BytesPerSecond kChannel(14e9);
  const std::vector<LevelGroup> groups = groups_of(devices, topology);
  Seconds slowest;
  for (const LevelGroup& group : groups) slowest = std::max(slowest, transfer_time(*group.link, data));
  CollectiveTime out = exactly(slowest);
  if (groups.size() > 1 && uses_nccl(topology) && to_int(devices.size()) > kMostWithTwoChannels)
    out.time = out.most = std::max(slowest, data / kChannel);
  return out;
}

}  // namespace stagecraft
