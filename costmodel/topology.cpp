#include "costmodel/topology.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft {
namespace {

void check_curve(const Curve& curve, const std::string& where) {
  if (curve.log_spread && (!(*curve.log_spread >= 0) || !std::isfinite(*curve.log_spread)))
    throw std::invalid_argument(where + ": the log_spread is negative or not a number");
  Bytes last(-1);
  for (const CurvePoint& point : curve.points) {
    if (point.bytes <= last) throw std::invalid_argument(where + ": points are not ascending in bytes");
    if (!(point.time > Seconds(0)) || !std::isfinite(point.time.value)) {
      throw std::invalid_argument(where + ": a time is not positive");
    }
    last = point.bytes;
  }
}

void check_collective(const std::map<int, Curve>& curves, const std::string& where) {
  for (const auto& [ranks, curve] : curves) {
    if (curve.points.empty()) throw std::invalid_argument(where + " has a curve without points");
    if (ranks < 2) throw std::invalid_argument(where + " of fewer than 2 ranks");
    check_curve(curve, where);
  }
}

}  // namespace

void validate(const Topology& topology) {
  if (topology.levels.empty()) throw std::invalid_argument("the topology has no levels");
  if (topology.device.memory && *topology.device.memory <= Bytes(0)) {
    throw std::invalid_argument("the device memory is not positive");
  }
  if (topology.device.host_processors < 0) throw std::invalid_argument("host_processors is negative");
  check_curve(topology.device.host_to_device, "the device: host_to_device");
  check_curve(topology.device.device_to_host, "the device: device_to_host");
  std::int64_t devices = 1;
  for (const Level& level : topology.levels) {
    const std::string where = "level \"" + level.name + "\"";
    if (level.count < 1) throw std::invalid_argument(where + ": the count is below 1");
    devices *= level.count;
    if (devices > (1 << 24)) throw std::invalid_argument(where + ": more than 2^24 devices");
    if (!(level.link.bandwidth > BytesPerSecond(0)) || !std::isfinite(level.link.bandwidth.value)) {
      throw std::invalid_argument(where + ": the bandwidth is not a positive number");
    }
    if (!(level.link.latency >= Seconds(0)) || !std::isfinite(level.link.latency.value)) {
      throw std::invalid_argument(where + ": the latency is negative or not a number");
    }
    check_curve(level.link.send_receive, where + ": send_receive");
    if (const auto& processing = level.link.processing) {
      if (processing->sender.points.empty() && processing->receiver.points.empty())
        throw std::invalid_argument(where + ": processing has neither sender nor receiver");
      check_curve(processing->sender, where + ": processing: sender");
      check_curve(processing->receiver, where + ": processing: receiver");
    }
    check_collective(level.link.all_reduce, where + ": all_reduce");
    check_collective(level.link.all_gather, where + ": all_gather");
    check_collective(level.link.reduce_scatter, where + ": reduce_scatter");
    check_collective(level.link.all_to_all, where + ": all_to_all");
    for (const auto& [key, curve] : level.link.spans) {
      if (key.per_group < 2 || key.ranks <= key.per_group || key.ranks % key.per_group != 0)
        throw std::invalid_argument(where + ": a collective of " + std::to_string(key.ranks) + " ranks, " +
                                    std::to_string(key.per_group) + " in each group, is not of several equal groups");
      check_collective({{key.ranks, curve}}, where + ": a collective of several groups");
    }
  }
  std::int64_t next = 0;
  for (const DeviceRange& range : topology.others) {
    const std::string where = "devices of type \"" + range.device.name + "\"";
    if (range.count < 1) throw std::invalid_argument(where + ": the count is below 1");
    if (range.first < next) throw std::invalid_argument(where + ": the first is below " + std::to_string(next));
    next = std::int64_t{range.first} + range.count;
    if (next > devices) {
      throw std::invalid_argument(where + ": device " + std::to_string(next - 1) + " does not exist, there are " +
                                  std::to_string(devices));
    }
    if (range.device.name == topology.device.name)
      throw std::invalid_argument(where + ": that is the type of the topology's other devices");
    if (range.device.memory && *range.device.memory <= Bytes(0))
      throw std::invalid_argument(where + ": the memory is not positive");
  }
}

const Device& device_at(const Topology& topology, int device) {
  for (const DeviceRange& range : topology.others) {
    if (device >= range.first && device - range.first < range.count) return range.device;
  }
  return topology.device;
}

Topology with_measured(Topology declared, const Topology& measured) {
  for (const Level& level : measured.levels) {
    std::vector<std::string> known;
    for (const Level& other : declared.levels) known.push_back(other.name);
    const auto at = std::find(known.begin(), known.end(), level.name);
    if (at == known.end()) throw InputError(ErrorKind::UnknownName, unknown_name("level", level.name, known));
    declared.levels[to_index(at - known.begin())].link = level.link;
  }
  const auto take = [](Curve& to, const Curve& from) {
    if (!from.points.empty()) to = from;
  };
  if (declared.device.kind == DeviceKind::Unknown) declared.device.kind = measured.device.kind;
  take(declared.device.host_to_device, measured.device.host_to_device);
  take(declared.device.device_to_host, measured.device.device_to_host);
  return declared;
}

std::string distrust_text(const Topology& topology) {
  const auto has_reasons = [](const Level& level) { return !level.link.distrust.empty(); };
  const bool several = std::ranges::count_if(topology.levels, has_reasons) > 1;
  std::vector<std::string> reasons;
  for (const Level& level : topology.levels) {
    for (const std::string& reason : level.link.distrust)
      reasons.push_back((several ? level.name + ": " : "") + reason);
  }
  if (reasons.empty()) reasons = crowded_reasons(topology.conditions, "the ranks");
  std::string out;
  for (const std::string& reason : reasons) out += (out.empty() ? "the links are not trusted: " : "; ") + reason;
  return out;
}

Topology smaller_topology(Topology topology, int devices) {
  int group = device_count(topology);
  for (auto level = topology.levels.rbegin(); level != topology.levels.rend(); ++level) {
    group /= level->count;
    level->count = std::clamp(devices / group, 1, level->count);
    devices /= level->count;
  }
  return topology;
}

int device_count(const Topology& topology) {
  int count = 1;
  for (const Level& level : topology.levels) count *= level.count;
  return count;
}

int group_below(const Topology& topology, int level, int device) {
  int size = 1;
  for (int k = 0; k < level; ++k) size *= topology.levels[to_index(k)].count;
  return device / size;
}

int joining_level(const Topology& topology, int a, int b) {
  int joining = 0;
  for (int k = 0; k < to_int(topology.levels.size()); ++k) {
    if (group_below(topology, k, a) != group_below(topology, k, b)) joining = k;
  }
  return joining;
}

namespace {

/// Of a const Link too.
template <class AnyLink>
auto& curves_in(AnyLink& link, Collective collective) {
  switch (collective) {
    case Collective::AllReduce:
      return link.all_reduce;
    case Collective::AllGather:
      return link.all_gather;
    case Collective::ReduceScatter:
      return link.reduce_scatter;
    case Collective::AllToAll:
      break;
  }
  return link.all_to_all;
}

}  // namespace

const std::map<int, Curve>& curves_of(const Link& link, Collective collective) { return curves_in(link, collective); }

std::map<int, Curve>& curves_of(Link& link, Collective collective) { return curves_in(link, collective); }

int ring_steps(Collective collective, int ranks) { return (collective == Collective::AllReduce ? 2 : 1) * (ranks - 1); }

Seconds interpolate(const Curve& curve, Bytes data) {
  const auto& points = curve.points;
  if (data <= points.front().bytes) return points.front().time;
  const auto above =
      std::lower_bound(points.begin(), points.end(), data, [](const CurvePoint& p, Bytes b) { return p.bytes < b; });
  if (above == points.end() && points.size() == 1) {
    return points.front().bytes > Bytes(0) ? points.front().time * (data / points.front().bytes) : points.front().time;
  }
  const auto high = above == points.end() ? points.end() - 1 : above;
  const auto low = high - 1;
  const double part = (data - low->bytes) / (high->bytes - low->bytes);
  return std::max(low->time + (high->time - low->time) * part, Seconds(0));
}

Seconds latency_of(const Curve& curve, Seconds declared) {
  constexpr Bytes kSmall = 64_KiB;
  const auto& points = curve.points;
  const CurvePoint& first = points.front();
  // The time of the first message's bytes, at the end of the curve and between its first points.
  const auto of_bytes = [&](Seconds time, Bytes bytes) {
    return bytes > Bytes(0) ? time * (first.bytes / bytes) : Seconds(0);
  };
  Seconds moving = of_bytes(points.back().time, points.back().bytes);
  if (points.size() > 1) {
    moving = std::max(moving, of_bytes(points[1].time - first.time, points[1].bytes - first.bytes));
  }
  return first.bytes <= kSmall || moving <= first.time * 0.5 ? first.time : std::min(first.time, declared);
}

Seconds interpolate(const Curve& curve, Bytes data, Seconds declared_latency) {
  const CurvePoint& first = curve.points.front();
  if (data >= first.bytes) return interpolate(curve, data);
  const Seconds latency = latency_of(curve, declared_latency);
  return latency + (first.time - latency) * (data / first.bytes);
}

Seconds transfer_time(const Link& link, Bytes data) {
  if (data <= Bytes(0)) return Seconds(0);
  if (!link.send_receive.points.empty()) {
    const CurvePoint& last = link.send_receive.points.back();
    if (data > last.bytes) return last.time + (data - last.bytes) / link.bandwidth;
    return interpolate(link.send_receive, data, link.latency);
  }
  return link.latency + data / link.bandwidth;
}

}  // namespace stagecraft
