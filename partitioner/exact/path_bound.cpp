#include "partitioner/exact/path_bound.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "costmodel/index.h"
#include "partitioner/exact/computation_path.h"
#include "partitioner/exact/round_trips.h"

namespace stagecraft::partitioner {
namespace {

constexpr Seconds kNever(1e100);
constexpr int kNone = std::numeric_limits<int>::max() / 4;
/// Rounding of sums that are taken in different orders.
constexpr double kRounding = 1e-9;
/// Numbers of devices that prefixes, and suffixes, tell apart, where there are more than kMostWithWaves.
constexpr int kPlaces = 32;
/// Numbers of replicas above this with equal shares are one, up to a factor.
constexpr int kEveryNumber = 64;
constexpr double kAlike = 1.02;
/// Numbers of microbatches that come to a stage of as many replicas at once; and the most devices for which they count.
constexpr std::array<std::int64_t, 16> kWaves = {2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48};
constexpr int kMostWithWaves = 64;

Seconds larger(Seconds a, Seconds b) { return a < b ? b : a; }

}  // namespace

void PathBound::add(Sums& sums, const NodeCosts& node) {
  sums.forward += node.forward;
  sums.back += node.least_return;
  sums.least += node.least;
  sums.update += node.update;
  sums.untied += node.untied;
  sums.kept += node.kept;
  sums.saved += node.saved;
  ++sums.nodes;
}

std::unique_ptr<PathBound> PathBound::of(const PipelineCosts& costs, std::optional<Bytes> limit, int most_cuts) {
  if (!costs.waits() || costs.dag().nodes == 0) return nullptr;
  return std::unique_ptr<PathBound>(new PathBound(costs, limit, most_cuts));
}

PathBound::PathBound(const PipelineCosts& costs, std::optional<Bytes> limit, int most_cuts)
    : costs_(costs), limit_(limit), alternates_(costs.schedule().alternates), returns_(costs.returns()) {
  find_cuts(computation_path(costs), most_cuts);
  find_replicas();
}

void PathBound::find_cuts(const std::vector<int>& path, int most_cuts) {
  const int nodes = costs_.dag().nodes;
  const std::size_t length = path.size();
  std::vector<std::vector<int>> producers(to_index(nodes));
  std::vector<std::vector<int>> consumers(to_index(nodes));
  for (const auto& [from, to] : costs_.dag().edges) {
    producers[to_index(to)].push_back(from);
    consumers[to_index(from)].push_back(to);
  }
  Sums all;
  for (int v = 0; v < nodes; ++v) add(all, costs_.node(v));
  // Sums of a node's ancestors or descendants, with itself, on top of those of the path's node before it.
  const auto reach = [&](std::vector<bool>& seen, const std::vector<std::vector<int>>& next, int node, Sums& sums) {
    std::vector<int> waiting{node};
    while (!waiting.empty()) {
      const int v = waiting.back();
      waiting.pop_back();
      if (seen[to_index(v)]) continue;
      seen[to_index(v)] = true;
      add(sums, costs_.node(v));
      waiting.insert(waiting.end(), next[to_index(v)].begin(), next[to_index(v)].end());
    }
  };
  std::vector<Cut> cuts(length + 1);
  along_.assign(1, {});
  std::vector<bool> seen(to_index(nodes), false);
  Sums before;
  for (std::size_t c = 0; c <= length; ++c) {
    cuts[c].first = cuts[c].last = to_int(c);
    cuts[c].low = before;
    if (c == length) break;
    reach(seen, producers, path[c], before);
    along_.push_back(along_.back());
    add(along_.back(), costs_.node(path[c]));
  }
  seen.assign(to_index(nodes), false);
  Sums after;
  for (std::size_t c = length + 1; c-- > 0;) {
    if (c < length) reach(seen, consumers, path[c], after);
    Sums& high = cuts[c].high;
    high = all;
    high.forward -= after.forward;
    high.back -= after.back;
    high.least -= after.least;
    high.update -= after.update;
    high.untied -= after.untied;
    high.kept -= after.kept;
    high.saved -= after.saved;
    high.nodes -= after.nodes;
    cuts[c].several = high.nodes > cuts[c].low.nodes;
    if (c > 0 && c < length) cuts[c].hop = path_hop(costs_, path[c - 1], path[c]);
  }
  join_cuts(std::move(cuts), most_cuts);
}

/// Joins neighbours until about `most_cuts` are left, and adds the cuts before and after all nodes.
void PathBound::join_cuts(std::vector<Cut> cuts, int most_cuts) {
  const int length = cuts.back().last;
  const Sums all = cuts.back().high;
  Cut begin;
  begin.several = false;
  Cut end{length, length, all, all, false, {}};
  if (cuts.back().low.nodes == all.nodes) cuts.pop_back();
  if (!cuts.empty() && cuts.front().high.nodes == 0) cuts.erase(cuts.begin());
  cuts_.assign(1, begin);
  const bool joins = to_int(cuts.size()) > most_cuts;
  const Seconds most = all.least / std::max(1, most_cuts);
  std::optional<Cut> open;
  for (const Cut& cut : cuts) {
    if (open && joins && cut.low.least - open->low.least <= most) {
      open->last = cut.last;
      open->high = cut.high;
      open->several = true;
      open->hop = {std::min(open->hop.forward, cut.hop.forward), std::min(open->hop.back, cut.hop.back),
                   std::min(open->hop.port, cut.hop.port)};
      continue;
    }
    if (open) cuts_.push_back(*open);
    open = cut;
  }
  if (open) cuts_.push_back(*open);
  cuts_.push_back(end);
}

void PathBound::find_replicas() {
  const int m = costs_.microbatches();
  const int most = costs_.schedule().replicated ? std::min(costs_.devices(), m) : 1;
  for (int r = 1; r <= most; ++r) {
    const std::int64_t share = (m + r - 1) / r;
    if (r > kEveryNumber && replicas_.back().share == share && r <= kAlike * replicas_.back().first) {
      replicas_.back().last = r;
    } else {
      replicas_.push_back({r, r, share, 0, -1});
    }
  }
  for (Replicas& each : replicas_) {
    each.wave = m - each.last * (each.share - 1);
    each.queue = to_int(std::ranges::upper_bound(kWaves, each.wave) - kWaves.begin()) - 1;
  }
}

/// What a stage from `a` to a later cut `b` has at least.
PathBound::Sums PathBound::between(const Cut& a, const Cut& b) const {
  const Sums nothing;
  const Sums& from = along_[to_index(a.last)];
  const Sums& to = along_[to_index(std::max(a.last, b.first))];
  Sums out;
  const auto least = [&](auto Sums::* part) {
    out.*part = std::max({to.*part - from.*part, b.low.*part - a.high.*part, nothing.*part});
  };
  least(&Sums::forward);
  least(&Sums::back);
  least(&Sums::least);
  least(&Sums::update);
  least(&Sums::untied);
  least(&Sums::kept);
  least(&Sums::saved);
  out.least = larger(out.least, out.forward + out.back);
  return out;
}

/// With measured curves, more replicas may be faster. The sums are the least of several stages: all that adds this up
/// counts the backward that hides buckets, too, by itself or in the computation (see least_reduce_of_more).
Seconds PathBound::reduce(const Sums& sums, const Replicas& replicas) const {
  const bool known = replicas.first == replicas.last || costs_.reduce_grows();
  const Seconds summed =
      known ? costs_.least_reduce_of_more(sums.untied, replicas.first, sums.least - sums.forward) : Seconds(0);
  return summed + sums.update;
}

/// Whether the stage's replicas have memory for the microbatches that `later` devices behind them make them hold.
bool PathBound::fits(const Sums& sums, int replicas, int later) const {
  if (!limit_) return true;
  std::int64_t held = 1;
  if (alternates_) held = std::min<std::int64_t>(costs_.microbatches() / replicas, flight(later, replicas) / replicas);
  return sums.kept + (held - 1) * sums.saved <= *limit_;
}

// A replica with the last microbatch of the first round begins when that arrives; or its first backward ends `queue`
// later than its trip. What is last back from the first microbatch of the last round is `late`, and `queue` holds for
// it in reverse.
bool PathBound::keeps(const StageBound& stage, const Replicas& replicas, std::int64_t held, const Prefix& prefix,
                      Seconds trip, Seconds queue) const {
  const Sums& sums = stage.sums;
  const Seconds reduced = reduce(sums, replicas);
  const Seconds computed = sums.least * static_cast<double>(replicas.share);
  if (!stage.on_path) return reduced + computed <= time_;
  Seconds alone = trips_of(trip, sums.forward, sums.back, replicas.share, std::min(held, replicas.share));
  Seconds all = larger(queue + alone, trip + stage.port * static_cast<double>(replicas.share - 1));
  alone = larger(alone, computed);
  all = larger(all, computed);
  if (larger(prefix.before + reduced, prefix.around) + all > time_) return false;
  if (waves_ == 0 || replicas.queue < 0) return true;
  const auto at = to_index(replicas.queue);
  return larger(prefix.arrival[at] + reduced, prefix.late[at]) + alone <= time_;
}

/// How much longer than the first one the last of `wave` consecutive microbatches from the first one on takes through
/// this stage and back: it is number k = floor((wave - 1) / replicas) of its replica, from 0. After the replica's first
/// backward, which ends a trip after its forward begins, come k backwards, and before each of them a forward, unless
/// those have run out. Likewise for the first of the last ones, in reverse, with forwards for backwards.
Seconds PathBound::queue_of(const StageBound& stage, const Replicas& replicas, std::int64_t held,
                            std::int64_t wave) const {
  if (!returns_ || !stage.on_path) return Seconds(0);
  const std::int64_t k = (wave - 1) / replicas.last;
  const std::int64_t share = costs_.microbatches() / replicas.last;
  const std::int64_t both = std::clamp<std::int64_t>(share - held, 0, k);
  const Sums& sums = stage.sums;
  return (sums.forward + sums.back) * static_cast<double>(both) +
         std::min(sums.forward, sums.back) * static_cast<double>(k - both);
}

/// What comes after the cut where the stage begins.
PathBound::Suffix PathBound::before(const StageBound& stage, const Replicas& replicas, std::int64_t held,
                                    const Suffix& later) const {
  const int r = replicas.first;
  Suffix out = later;
  out.devices += r;
  if (stage.on_path) out.trip += stage.trip;
  if (alternates_)
    out.flight = replicas.last > r ? later.flight + 2 * std::int64_t{replicas.last} : flight(later.flight, r);
  for (std::size_t i = 0; i < waves_; ++i)
    out.queue[i] = larger(out.queue[i], queue_of(stage, replicas, held, kWaves[i]));
  return out;
}

PathBound::StageBound PathBound::stage(std::size_t from, std::size_t to) const {
  const Cut& a = cuts_[from];
  const Cut& b = cuts_[to];
  StageBound out;
  out.sums = between(a, b);
  out.on_path = a.last < b.first;
  out.trip = out.on_path ? out.sums.forward + out.sums.back + b.hop.forward + b.hop.back : Seconds(0);
  out.port = larger(a.hop.port, b.hop.port);
  return out;
}

/// The first of replicas_ whose computation alone leaves the stage within the time.
std::size_t PathBound::first_replicas(const StageBound& stage, Seconds before) const {
  if (stage.sums.least <= Seconds(0)) return 0;
  const double most = (time_ - before) / stage.sums.least;
  if (most < 1) return replicas_.size();
  const auto it = std::ranges::partition_point(
      replicas_, [&](const Replicas& each) { return static_cast<double>(each.share) > most; });
  return to_index(it - replicas_.begin());
}

/// The least replicas of a stage, however many microbatches it may hold.
const PathBound::Replicas* PathBound::least_replicas(const StageBound& stage, const Prefix& prefix,
                                                     Seconds trip) const {
  for (std::size_t i = first_replicas(stage, stage.on_path ? prefix.before : Seconds(0)); i < replicas_.size(); ++i) {
    if (keeps(stage, replicas_[i], replicas_[i].share, prefix, trip, Seconds(0))) return &replicas_[i];
  }
  return nullptr;
}

bool PathBound::should_stop(const std::function<bool()>& stop) {
  constexpr std::uint64_t kOften = 1 << 6;
  return ++asked_ % kOften == 0 && stop();
}

/// The way along the path after a cut and back.
Seconds PathBound::way_after(std::size_t cut) const {
  const Sums& all = along_.back();
  const Sums& done = along_[to_index(cuts_[cut].last)];
  return larger(all.forward + all.back - done.forward - done.back, Seconds(0));
}

bool PathBound::go_forward(const std::function<bool()>& stop) {
  const std::size_t cuts = cuts_.size();
  const std::size_t places = place(devices_) + 1;
  Prefix never{kNever, kNever, {}, {}};
  never.arrival.fill(kNever);
  never.late.fill(kNever);
  prefixes_.assign(cuts * places, never);
  least_before_.assign(cuts, kNone);
  std::fill_n(prefixes_.begin(), places, Prefix{});
  least_before_[0] = 0;
  for (std::size_t i = 0; i + 1 < cuts; ++i) {
    Prefix* const own = &prefixes_[i * places];
    for (std::size_t g = 1; g < places; ++g) merge(own[g], own[g - 1]);
    if (own[places - 1].before >= kNever || least_before_[i] >= devices_) continue;
    for (std::size_t j = i + 1; j < cuts; ++j) {
      if (should_stop(stop)) return false;
      const StageBound next = stage(i, j);
      if (limit_ && next.sums.kept > *limit_) break;
      const Seconds trip = next.trip + way_after(j);
      const Replicas* least = least_replicas(next, own[places - 1], trip);
      if (least == nullptr) {
        // A longer stage takes no less.
        if (first_replicas(next, next.on_path ? own[places - 1].before : Seconds(0)) == replicas_.size()) break;
        continue;
      }
      if (least_before_[i] + least->first > devices_) continue;
      least_before_[j] = std::min(least_before_[j], least_before_[i] + least->first);
      const std::size_t first = place(least_before_[i]);
      for (std::size_t g = first; g < places; ++g) {
        if (own[g].before >= kNever) continue;
        // More devices that change nothing before the cut.
        if (g > first && own[g] == own[g - 1]) continue;
        least = least_replicas(next, own[g], trip);
        if (least == nullptr) continue;
        // Of more replicas all is later, but what waits for them.
        const Replicas* const last = waves_ == 0 ? least : &replicas_.back();
        for (const Replicas* each = least; each <= last; ++each) {
          const std::size_t to = g + place(each->first);
          if (to >= places) break;
          if (each != least && !keeps(next, *each, each->share, own[g], trip, Seconds(0))) continue;
          merge(prefixes_[j * places + to], after(next, j, *each, own[g]));
        }
      }
    }
  }
  return true;
}

PathBound::Prefix PathBound::after(const StageBound& stage, std::size_t to, const Replicas& replicas,
                                   const Prefix& prefix) const {
  if (!stage.on_path) return prefix;
  const Sums& sums = stage.sums;
  const Seconds there = sums.forward + cuts_[to].hop.forward;
  const Seconds back = sums.back + cuts_[to].hop.back;
  // The fewest replicas have the shortest reduce, unless it was measured.
  const Seconds reduced = costs_.reduce_grows() ? reduce(sums, replicas) : sums.update;
  const Seconds around = larger(prefix.around, prefix.before + reduced);
  Prefix out;
  out.before = prefix.before + there;
  out.around = returns_ ? around + there + back : out.before;
  for (std::size_t i = 0; i < waves_; ++i) {
    // As many microbatches come before it, or after it, on its replica.
    const auto others = static_cast<double>((kWaves[i] - 1) / replicas.last);
    out.arrival[i] = larger(prefix.arrival[i], prefix.before + sums.forward * others) + there;
    out.late[i] = out.arrival[i];
    if (!returns_) continue;
    out.late[i] =
        larger(larger(prefix.late[i], around + larger(sums.forward, sums.back) * others), prefix.arrival[i] + reduced) +
        there + back;
  }
  return out;
}

void PathBound::merge(Prefix& into, const Prefix& other) const {
  into.before = std::min(into.before, other.before);
  into.around = std::min(into.around, other.around);
  for (std::size_t i = 0; i < waves_; ++i) {
    into.arrival[i] = std::min(into.arrival[i], other.arrival[i]);
    into.late[i] = std::min(into.late[i], other.late[i]);
  }
}

bool PathBound::find_least_after(const std::function<bool()>& stop) {
  const std::size_t cuts = cuts_.size();
  least_after_.assign(cuts, kNone);
  least_after_.back() = 0;
  for (std::size_t i = cuts - 1; i-- > 0;) {
    if (least_before_[i] >= devices_) continue;
    const Prefix& before = prefix(i, devices_);
    for (std::size_t j = i + 1; j < cuts; ++j) {
      if (should_stop(stop)) return false;
      if (least_after_[j] >= devices_ || least_before_[j] > devices_) continue;
      const StageBound next = stage(i, j);
      if (limit_ && next.sums.kept > *limit_) break;
      const Replicas* least = least_replicas(next, before, next.trip + way_after(j));
      if (least != nullptr) least_after_[i] = std::min(least_after_[i], least->first + least_after_[j]);
    }
  }
  return true;
}

/// Remembers a way from the cut on, if its devices leave enough for the stages before.
void PathBound::insert(std::size_t cut, const Suffix& suffix) {
  std::vector<Suffix>& all = suffixes_[cut];
  const std::size_t at = to_index(std::max(0, suffix.devices - least_after_[cut]) / width_[cut]);
  if (at >= all.size()) return;
  Suffix& there = all[at];
  there.devices = std::min(there.devices, suffix.devices);
  there.trip = std::min(there.trip, suffix.trip);
  there.flight = std::max(there.flight, suffix.flight);
  for (std::size_t k = 0; k < waves_; ++k) there.queue[k] = std::min(there.queue[k], suffix.queue[k]);
}

/// Stages between two cuts that are the same here, of which nothing is known. Each lets twice its devices more be in
/// flight at most: flight(next, r) < next + 2 r.
void PathBound::add_stages_without_work(std::size_t cut) {
  if (!cuts_[cut].several) return;
  std::vector<Suffix>& all = suffixes_[cut];
  Suffix best{kNone, kNever, std::numeric_limits<std::int64_t>::min() / 4, {}};  // flight: less twice the devices
  best.queue.fill(kNever);
  for (std::size_t g = 0; g < all.size(); ++g) {
    Suffix& own = all[g];
    const int first = least_after_[cut] + to_int(g) * width_[cut];
    const int last = first + width_[cut] - 1;
    if (own.devices < kNone) {
      best.devices = std::min(best.devices, own.devices);
      best.trip = std::min(best.trip, own.trip);
      for (std::size_t k = 0; k < waves_; ++k) best.queue[k] = std::min(best.queue[k], own.queue[k]);
      best.flight = std::max(best.flight, own.flight - 2 * std::int64_t{own.devices});
    }
    if (best.devices >= kNone) continue;
    own.devices = std::min(own.devices, std::max(first, best.devices));
    own.trip = best.trip;
    own.queue = best.queue;
    if (alternates_) own.flight = std::max(own.flight, best.flight + 2 * std::int64_t{last});
  }
}

bool PathBound::go_back(const std::function<bool()>& stop) {
  const std::size_t cuts = cuts_.size();
  suffixes_.assign(cuts, {});
  width_.assign(cuts, 1);
  suffixes_.back() = {Suffix{}};
  for (std::size_t i = cuts - 1; i-- > 0;) {
    const int spare = devices_ - least_before_[i] - least_after_[i];
    if (spare < 0) continue;
    width_[i] = spare <= kMostWithWaves ? 1 : spare / kPlaces + 1;
    Suffix none{kNone, kNever, 0, {}};
    none.queue.fill(kNever);
    suffixes_[i].assign(to_index(spare / width_[i]) + 1, none);
    for (std::size_t j = i + 1; j < cuts; ++j) {
      if (should_stop(stop)) return false;
      if (suffixes_[j].empty()) continue;
      const StageBound next = stage(i, j);
      if (limit_ && next.sums.kept > *limit_) break;
      for (const Suffix& later : suffixes_[j]) {
        const int most = devices_ - least_before_[i] - later.devices;
        if (most < 1) continue;
        const Seconds trip = next.trip + later.trip;
        const Seconds arrival = next.on_path ? prefix(i, devices_ - later.devices - 1).before : Seconds(0);
        for (std::size_t k = first_replicas(next, arrival); k < replicas_.size(); ++k) {
          const Replicas& replicas = replicas_[k];
          const int r = replicas.first;
          if (r > most) break;
          const std::int64_t held = alternates_ ? flight(later.flight, r) / r : replicas.share;
          const Prefix& earlier = prefix(i, devices_ - later.devices - r);
          const Seconds queue = waves_ == 0 || replicas.queue < 0 ? Seconds(0) : later.queue[to_index(replicas.queue)];
          if (fits(next.sums, replicas.last, later.devices) && keeps(next, replicas, held, earlier, trip, queue))
            insert(i, before(next, replicas, held, later));
        }
      }
    }
    add_stages_without_work(i);
  }
  return true;
}

std::optional<bool> PathBound::refutes(Seconds time, int devices, const std::function<bool()>& stop) {
  time_ = time * (1 + kRounding);
  devices_ = devices;
  step_ = devices <= kMostWithWaves ? 1 : devices / kPlaces + 1;
  waves_ = 0;
  while (devices <= kMostWithWaves && waves_ < kWaves.size() && kWaves[waves_] <= devices) ++waves_;
  if (!go_forward(stop)) return std::nullopt;
  if (least_before_.back() > devices_) return true;
  if (!find_least_after(stop)) return std::nullopt;
  if (!go_back(stop)) return std::nullopt;
  return std::ranges::none_of(suffixes_.front(), [&](const Suffix& all) { return all.devices <= devices_; });
}

}  // namespace stagecraft::partitioner
