#include "partitioner/costs/least_reduce.h"

#include <algorithm>
#include <cstdint>

#include "costmodel/index.h"
#include "costmodel/links/collectives.h"

namespace stagecraft::partitioner {
namespace {

/// The least time of at least `bytes` by a measured curve, see interpolate.
Seconds least_beyond(const Curve& curve, Bytes bytes, Seconds latency) {
  const std::vector<CurvePoint>& points = curve.points;
  Seconds out = interpolate(curve, bytes, latency);
  if (points.size() == 1) return out;
  if (points.back().time < points[points.size() - 2].time) return Seconds(0);
  for (const CurvePoint& point : points) {
    if (point.bytes > bytes) out = std::min(out, point.time);
  }
  return out;
}

/// Whether level_all_reduce_time takes measured curves.
bool is_measured(const Link& link, int devices) {
  return link.all_reduce.contains(devices) ||
         (link.reduce_scatter.contains(devices) && link.all_gather.contains(devices));
}

}  // namespace

int most_in_group(int first, int last, int size, int except) {
  int out = 0;
  for (int group = first / size; group <= (last - 1) / size; ++group) {
    if (group != except) out = std::max(out, std::min((group + 1) * size, last) - std::max(group * size, first));
  }
  return out;
}

LeastReduce::LeastReduce(const Topology& topology) : levels_(topology.levels), nccl_(uses_nccl(topology)) {
  grows_ = std::ranges::all_of(levels_, [](const Level& level) {
    const Link& link = level.link;
    return link.all_reduce.empty() && link.reduce_scatter.empty() && link.all_gather.empty() && link.spans.empty();
  });
  for (const Level& level : levels_) {
    rounding_ += Bytes(2) / level.link.bandwidth;
    devices_ *= level.count;
  }
}

/// By the formula of all_reduce_time: if at most k = `groups` groups of a level are in one group of the next, the level
/// takes 2 (k - 1) (latency + part / k / bandwidth) and leaves part / k to the levels above. NCCL sends at least as
/// many bytes, but its levels work at the same time and hide their latencies.
ReduceLine LeastReduce::in_groups(std::size_t level, int groups, const ReduceLine& above) const {
  const Link& link = levels_[level].link;
  const SecondsPerByte here(2.0 * (groups - 1) / groups / link.bandwidth.value);
  const SecondsPerByte outside = above.per_byte / groups;
  if (nccl_) return {Seconds(0), std::max(here, outside)};
  return {2.0 * (groups - 1) * link.latency + above.fixed, here + outside};
}

/// The least time over all ways to spread n = `devices` devices over the groups of this level and the levels above:
/// n devices in groups of k fill at least ceil(n / k) groups.
ReduceLine LeastReduce::least_from(std::size_t level, int devices) const {
  if (devices <= 1 || level == levels_.size()) return {};
  int above = 1;  // the most groups above
  for (std::size_t l = level + 1; l < levels_.size() && above < devices; ++l)
    above *= std::min(levels_[l].count, devices);
  std::optional<ReduceLine> out;
  for (int k = 1; k <= std::min(levels_[level].count, devices); ++k) {
    const int groups = (devices + k - 1) / k;
    if (groups > above) continue;
    const ReduceLine line = in_groups(level, k, least_from(level + 1, groups));
    if (!out) out = line;
    out->fixed = std::min(out->fixed, line.fixed);
    out->per_byte = std::min(out->per_byte, line.per_byte);
  }
  return out.value_or(ReduceLine{});
}

/// The time for `devices` groups of a level in order, the first of which is `first`.
ReduceLine LeastReduce::in_order_from(std::size_t level, int first, int devices) const {
  if (devices <= 1 || level == levels_.size()) return {};
  const int size = levels_[level].count;
  const int begin = first / size;
  const int end = (first + devices - 1) / size + 1;
  const int most = most_in_group(first, first + devices, size);
  return in_groups(level, most, in_order_from(level + 1, begin, end - begin));
}

Seconds LeastReduce::time(Bytes bytes, int devices, bool is_least, std::optional<int> first) const {
  if (levels_.size() == 1) {
    const Link& link = levels_.front().link;
    if (!is_least || !is_measured(link, devices)) return level_all_reduce_time(bytes, devices, link, nccl_);
    const auto curve = link.all_reduce.find(devices);
    return curve == link.all_reduce.end()
               ? Seconds(0)
               : least_beyond(curve->second, bytes, link.latency * ring_steps(Collective::AllReduce, devices));
  }
  if (!grows_) return Seconds(0);
  const ReduceLine& least = line(devices, first);
  return std::max(Seconds(0), least.fixed + least.per_byte * bytes);
}

const ReduceLine& LeastReduce::line(int devices, std::optional<int> first) const {
  std::vector<std::optional<ReduceLine>>& lines = first ? lines_in_order_ : lines_;
  const std::size_t at = to_index(devices) + (first ? to_index(*first) * to_index(devices_ + 1) : 0);
  if (at >= lines.size()) lines.resize(at + 1);
  std::optional<ReduceLine>& known = lines[at];
  if (!known) {
    known = first ? in_order_from(0, *first, devices) : least_from(0, devices);
    known->fixed -= rounding_;
  }
  return *known;
}

Seconds LeastReduce::time_in_parts(Bytes bytes, int devices, Bytes part, int most, bool is_least,
                                   std::optional<int> first) const {
  // By a measured curve, the parts of a sum may take less time than the whole.
  if (levels_.size() == 1 && is_measured(levels_.front().link, devices)) return Seconds(0);
  const Seconds whole = time(bytes, devices, is_least, first);
  if (levels_.size() == 1) return whole;
  // Each part takes a fixed time, of which only one is counted, and may be rounded down.
  const auto parts = is_least ? most : std::min<std::int64_t>(most, bytes.value / part.value + 1);
  return std::max(Seconds(0), whole - rounding_ * static_cast<double>(parts - 1));
}

ReduceLine LeastReduce::line_below(Bytes most_bytes, int devices, int parts) const {
  if (!grows_ || most_bytes <= Bytes(0)) return {};
  // The time of one level is the minimum of lines, hence concave and nowhere below its chord.
  if (levels_.size() == 1) return {Seconds(0), time(most_bytes, devices, false) / fractional(most_bytes)};
  ReduceLine out = line(devices);
  out.fixed = std::min(Seconds(0), out.fixed - rounding_ * (parts - 1.0));
  return out;
}

}  // namespace stagecraft::partitioner
