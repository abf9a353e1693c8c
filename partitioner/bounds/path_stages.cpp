#include "partitioner/bounds/path_stages.h"

#include <algorithm>

#include "partitioner/bounds/bound_limits.h"
#include "partitioner/costs/round_trips.h"

namespace stagecraft::partitioner {
namespace {

/// Rounding of sums that are taken in different orders.
constexpr double kRounding = 1e-9;
/// Numbers of microbatches that come to a stage of as many replicas at once.
constexpr std::array<std::int64_t, 16> kWaves = {2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48};

}  // namespace

PathStages::Prefix PathStages::Prefix::none() {
  Prefix out{kNever, kNever, {}, {}};
  out.arrival.fill(kNever);
  out.late.fill(kNever);
  return out;
}

void PathStages::Prefix::merge(const Prefix& other, std::size_t waves) {
  before = std::min(before, other.before);
  around = std::min(around, other.around);
  for (std::size_t i = 0; i < waves; ++i) {
    arrival[i] = std::min(arrival[i], other.arrival[i]);
    late[i] = std::min(late[i], other.late[i]);
  }
}

PathStages::Suffix PathStages::Suffix::none() {
  Suffix out{kNone, kNever, std::numeric_limits<std::int64_t>::min() / 4, {}};
  out.queue.fill(kNever);
  return out;
}

void PathStages::Suffix::merge(const Suffix& other, std::size_t waves) {
  devices = std::min(devices, other.devices);
  trip = std::min(trip, other.trip);
  flight = std::max(flight, other.flight);
  for (std::size_t i = 0; i < waves; ++i) queue[i] = std::min(queue[i], other.queue[i]);
}

PathStages::PathStages(const PipelineCosts& costs, const PathCuts& cuts, std::optional<Bytes> limit)
    : costs_(costs), cuts_(cuts), limit_(limit), alternates_(costs.schedule().alternates), returns_(costs.returns()) {
  find_replicas();
}

void PathStages::find_replicas() {
  const int m = costs_.microbatches();
  for (const ReplicaRange& range : replica_ranges(std::min(costs_.devices(), m), m))
    replicas_.push_back({range, 0, -1});
  for (Replicas& replicas : replicas_) {
    replicas.wave = m - replicas.last * (replicas.share - 1);
    replicas.queue = to_int(std::ranges::upper_bound(kWaves, replicas.wave) - kWaves.begin()) - 1;
  }
}

void PathStages::ask(Seconds time, int devices) {
  time_ = time * (1 + kRounding);
  devices_ = devices;
  waves_ = 0;
  while (devices <= BoundLimits::kMostWithWaves && waves_ < kWaves.size() && kWaves[waves_] <= devices) ++waves_;
}

PathStages::StageBound PathStages::stage(const PathCut& a, const PathCut& b) const {
  StageBound out;
  out.sums = cuts_.between(a, b);
  out.on_path = a.last < b.first;
  out.trip = out.on_path ? out.sums.forward + out.sums.back + b.hop.forward + b.hop.back : Seconds(0);
  out.port = std::max(a.hop.port, b.hop.port);
  out.hop = b.hop;
  return out;
}

/// 0 for a range of replicas if a measured curve may fall. `sums` is the least of several stages, so
/// least_reduce_of_more applies: whatever adds this time also adds the backward that hides buckets, by itself or within
/// the computation.
Seconds PathStages::reduce(const PathSums& sums, const Replicas& replicas) const {
  const bool known = replicas.first == replicas.last || costs_.reduce_grows();
  const Seconds summed =
      known ? costs_.least_reduce_of_more(sums.untied, replicas.first, sums.least - sums.forward) : Seconds(0);
  return summed + sums.update;
}

bool PathStages::fits(const StageBound& stage, const Replicas& replicas, int later) const {
  if (!limit_) return true;
  const std::int64_t in_flight = costs_.least_in_flight(flight(later, replicas.last), replicas.last);
  return costs_.least_peak(stage.sums.bytes, in_flight, replicas.first, {}, false, replicas.last) <= *limit_;
}

// The replica that runs x, the last microbatch of the first round, begins when x arrives; or the first backward of this
// replica ends `queue` later than a trip. `late` is the same for y, the first microbatch of the last round, in reverse.
bool PathStages::keeps(const StageBound& stage, const Replicas& replicas, std::int64_t in_flight, const Prefix& prefix,
                       Seconds trip, Seconds queue) const {
  const PathSums& sums = stage.sums;
  const Seconds reduced = reduce(sums, replicas);
  const Seconds computed = sums.least * static_cast<double>(replicas.share);
  if (!stage.on_path) return reduced + computed <= time_;
  if (sums.loading > Seconds(0) && prefix.before + costs_.least_loading(sums.loading, replicas.last) > time_)
    return false;
  Seconds alone = trips_of(trip, sums.forward, sums.back, replicas.share, std::min(in_flight, replicas.share));
  Seconds all = std::max(queue + alone, trip + stage.port * static_cast<double>(replicas.share - 1));
  alone = std::max(alone, computed);
  all = std::max(all, computed);
  if (std::max(prefix.before + reduced, prefix.around) + all > time_) return false;
  if (waves_ == 0 || replicas.queue < 0) return true;
  const auto at = to_index(replicas.queue);
  return std::max(prefix.arrival[at] + reduced, prefix.late[at]) + alone <= time_;
}

bool PathStages::keeps(const StageBound& stage, const Replicas& replicas, const Prefix& prefix,
                       const Suffix& later) const {
  if (!fits(stage, replicas, later.devices)) return false;
  const Seconds queue = waves_ == 0 || replicas.queue < 0 ? Seconds(0) : later.queue[to_index(replicas.queue)];
  return keeps(stage, replicas, held_microbatches(replicas, later), prefix, stage.trip + later.trip, queue);
}

/// The most microbatches that a replica may hold at once if the stages `later` follow.
std::int64_t PathStages::held_microbatches(const Replicas& replicas, const Suffix& later) const {
  return alternates_ ? flight(later.flight, replicas.first) / replicas.first : replicas.share;
}

/// How much longer x, the last of the first `wave` microbatches, takes through this stage and back than microbatch 0.
/// x has number k = floor((wave - 1) / replicas) on its replica, counted from 0. The first backward of that replica
/// ends a trip after its forward begins. k backwards follow, and before each of them a forward, while forwards are
/// left. In reverse, the same holds for y, the first of the last `wave` microbatches, with forwards for backwards.
Seconds PathStages::queue_of(const StageBound& stage, const Replicas& replicas, std::int64_t in_flight,
                             std::int64_t wave) const {
  if (!returns_ || !stage.on_path) return Seconds(0);
  const std::int64_t k = (wave - 1) / replicas.last;
  const std::int64_t share = costs_.microbatches() / replicas.last;
  const std::int64_t both = std::clamp<std::int64_t>(share - in_flight, 0, k);
  const PathSums& sums = stage.sums;
  return (sums.forward + sums.back) * static_cast<double>(both) +
         std::min(sums.forward, sums.back) * static_cast<double>(k - both);
}

PathStages::Suffix PathStages::before(const StageBound& stage, const Replicas& replicas, const Suffix& later) const {
  const int r = replicas.first;
  Suffix out = later;
  out.devices += r;
  if (stage.on_path) out.trip += stage.trip;
  if (alternates_)
    out.flight = replicas.last > r ? later.flight + 2 * std::int64_t{replicas.last} : flight(later.flight, r);
  for (std::size_t i = 0; i < waves_; ++i)
    out.queue[i] = std::max(out.queue[i], queue_of(stage, replicas, held_microbatches(replicas, later), kWaves[i]));
  return out;
}

std::size_t PathStages::first_replicas(const StageBound& stage, Seconds before) const {
  if (stage.sums.least <= Seconds(0)) return 0;
  const double most = (time_ - before) / stage.sums.least;
  if (most < 1) return replicas_.size();
  const auto it = std::ranges::partition_point(
      replicas_, [&](const Replicas& replicas) { return static_cast<double>(replicas.share) > most; });
  return to_index(it - replicas_.begin());
}

Seconds PathStages::way_after(const PathCut& cut) const {
  const PathSums& all = cuts_.all();
  const PathSums& done = cuts_.along(cut.last);
  return std::max(all.forward + all.back - done.forward - done.back, Seconds(0));
}

PathStages::Prefix PathStages::after(const StageBound& stage, const Replicas& replicas, const Prefix& prefix) const {
  if (!stage.on_path) return prefix;
  const PathSums& sums = stage.sums;
  const Seconds there = sums.forward + stage.hop.forward;
  const Seconds back = sums.back + stage.hop.back;
  // The fewest replicas of the range have the shortest reduce, unless a measured curve may fall.
  const Seconds reduced = costs_.reduce_grows() ? reduce(sums, replicas) : sums.update;
  const Seconds around = std::max(prefix.around, prefix.before + reduced);
  Prefix out;
  out.before = prefix.before + there;
  out.around = returns_ ? around + there + back : out.before;
  for (std::size_t i = 0; i < waves_; ++i) {
    // The microbatches before x, or after y, on the same replica.
    const auto others = static_cast<double>((kWaves[i] - 1) / replicas.last);
    out.arrival[i] = std::max(prefix.arrival[i], prefix.before + sums.forward * others) + there;
    out.late[i] = out.arrival[i];
    if (!returns_) continue;
    out.late[i] = std::max(std::max(prefix.late[i], around + std::max(sums.forward, sums.back) * others),
                           prefix.arrival[i] + reduced) +
                  there + back;
  }
  return out;
}

}  // namespace stagecraft::partitioner
