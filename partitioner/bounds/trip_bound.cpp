#include "partitioner/bounds/trip_bound.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <ranges>

#include "costmodel/index.h"
#include "partitioner/bounds/bound_limits.h"
#include "partitioner/costs/heaviest_path.h"
#include "partitioner/costs/round_trips.h"

namespace stagecraft::partitioner {
namespace {

/// Rounding of sums that are taken in different orders.
constexpr double kRounding = 1e-11;

}  // namespace

/// Visits each set that can be left after a first stage of `set`. False if `stop` ended the visits.
template <class Visit>
bool TripBound::each_pair(std::uint32_t set, const std::function<bool()>& stop, Visit&& visit) {
  constexpr std::uint64_t kOften = 1 << 12;
  const double least_share = costs_.share(most_replicas_);
  now_ = {};
  saved_.clear();
  walk_.each_subset(
      set,
      [&](int node) {
        saved_.push_back(now_);
        const NodeCosts& costs = costs_.node(kept_[to_index(node)]);
        now_.forward += costs.forward;
        now_.back += costs.least_return;
        now_.least += costs.least;
        now_.update += costs.update;
        now_.untied += costs.untied;
        now_.bytes += costs.bytes;
        now_.loading = std::max(now_.loading, costs.loading);
        if (limit_) now_.workspace.add(kept_[to_index(node)], costs.workspace, costs.bytes.per_microbatch);
      },
      [&](int) {
        now_ = saved_.back();
        saved_.pop_back();
      },
      [&](std::uint32_t below) {
        asked_ += replicas_.size();
        if (asked_ >= kOften) {
          asked_ = 0;
          stopped_ = stopped_ || stop();
        }
        if (stopped_) { return Descend::No; }
        if (begin_[set].forward + now_.least * least_share > time_ ||
            (limit_ && costs_.least_peak(now_.bytes, 1, 1, now_.workspace.most) > *limit_))
          return Descend::No;
        visit(below);
        return Descend::Yes;
      });
  return !stopped_;
}

TripBound::Load TripBound::load_of(const Sums& sums, const ReplicaRange& replicas) const {
  const bool is_known = replicas.first == replicas.last || costs_.reduce_grows();
  const Seconds reduced = is_known ? costs_.least_reduce(sums.untied, replicas.first, sums.back) : Seconds(0);
  return {replicas, sums.least * costs_.share(replicas.first), reduced + sums.update,
          costs_.least_loading(sums.loading, replicas.last)};
}

/// Adds what is known of a stage whose devices are in order, from `first` on.
void TripBound::place(Load& load, const Sums& sums, int first) const {
  if (!in_order_ || load.replicas.first == 1) return;
  load.reduced = costs_.least_reduce(sums.untied, load.replicas.first, sums.back, first) + sums.update;
}

/// The message to a node of the path, from a stage that ends before device `boundary` if devices are in order. Of all
/// pairs of a device before and one from there on, none is nearer than the two at the boundary.
PathHop TripBound::hop_at(int place, int boundary) const {
  const std::size_t hop = to_index(place - 1);
  const bool is_known = in_order_ && to_index(boundary) < level_at_.size();
  if (is_known) return hops_at_[hop][level_at_[to_index(boundary)]];
  return {hops_[hop].forward, hops_[hop].back, {}};
}

/// The least time between the first and the last message at one port, if a stage on the devices [first, last) exchanges
/// the messages to node `place` of the path with a stage on the other side of `boundary`, which is `first` or `last`.
/// The stage's replicas compute up to `share` microbatches each. Without an order, the port is that of a replica.
Seconds TripBound::port_wait(int place, std::int64_t share, int first, int last, int boundary) const {
  const double others = static_cast<double>(share) - 1;
  if (!in_order_) return hops_[to_index(place - 1)].port * others;
  const std::vector<PathHop>& at = hops_at_[to_index(place - 1)];
  if (most_replicas_ == 1) return at[level_at_[to_index(boundary)]].port * others;
  // The other stage's replicas are unknown. Groups below the outermost level that do not touch it: all their messages
  // take that level.
  const int beyond = boundary == first ? first - 1 : boundary;
  const int size = costs_.devices_below(costs_.levels() - 1);
  const int most = most_in_group(first, last, size, beyond / size);
  const int messages = most * (costs_.microbatches() / (last - first));
  return at.back().port * static_cast<double>(std::max(0, messages - 1));
}

bool TripBound::is_reached(std::uint32_t set) const {
  for (int d = in_order_ ? 0 : devices_; d <= devices_; d += step_) {
    if (before_[slot(set, d)] < kNever) return true;
  }
  return false;
}

bool TripBound::go_forward(const std::function<bool()>& stop) {
  before_.assign(lattice_.count() * places(), kNever);
  around_ = before_;
  for (int d = 0; d <= (in_order_ ? 0 : devices_); d += step_)
    before_[slot(lattice_.full(), d)] = around_[slot(lattice_.full(), d)] = Seconds(0);
  for (std::uint32_t set = lattice_.full(); set > 0; --set) {
    for (int d = step_; d <= devices_ && !in_order_; d += step_) {
      before_[slot(set, d)] = std::min(before_[slot(set, d)], before_[slot(set, d - step_)]);
      around_[slot(set, d)] = std::min(around_[slot(set, d)], around_[slot(set, d - step_)]);
    }
    if (!is_reached(set)) continue;
    const bool finished = each_pair(set, stop, [&](std::uint32_t below) {
      const bool on_path = path_at_[below] > path_at_[set];
      for (const ReplicaRange& r : ranges()) {
        Load load = load_of(now_, r);
        if (begin_[set].forward + std::max(load.computed, load.busy) > time_) continue;
        for (int others = 0; others + r.first <= devices_; others += step_) {
          const std::size_t from = slot(set, others);
          if (before_[from] >= kNever) continue;
          const Seconds before = on_path ? std::max(before_[from], begin_[set].forward) : begin_[set].forward;
          const Seconds both = on_path ? std::max(around_[from], begin_[set].both) : begin_[set].both;
          place(load, now_, others);
          if (std::max(before + load.reduced, both) + load.computed > time_ || before + load.busy > time_) continue;
          const Prefix next = after(now_, set, below, load, others, {before_[from], around_[from]});
          const std::size_t to = slot(below, others + r.first);
          before_[to] = std::min(before_[to], next.before);
          around_[to] = std::min(around_[to], next.around);
        }
      }
    });
    if (!finished) return false;
  }
  return true;
}

/// Remembers a way to divide a set. If the table is full, the two ways with the most similar microbatches in flight are
/// merged.
void TripBound::add_way(std::uint32_t set, const Way& way) {
  const std::size_t at = slot(set, way.devices);
  const std::span<Way> all = std::span(ways_).subspan(at * most_ways_, most_ways_);
  std::uint8_t& count = ways_at_[at];
  const auto covers = [](const Way& a, const Way& b) {
    return a.devices <= b.devices && a.least_flight <= b.least_flight && a.most_flight >= b.most_flight &&
           a.trip <= b.trip;
  };
  Way* nearest = nullptr;
  std::int64_t distance = 0;
  for (Way& other : all.first(count)) {
    if (covers(other, way)) return;
    const std::int64_t apart =
        std::max({std::int64_t{0}, way.least_flight - other.most_flight, other.least_flight - way.most_flight});
    if (nearest != nullptr && apart >= distance) continue;
    nearest = &other;
    distance = apart;
  }
  const bool is_same =
      nearest != nullptr && nearest->least_flight == way.least_flight && nearest->most_flight == way.most_flight;
  if (!is_same && count < most_ways_) {
    all[count++] = way;
    return;
  }
  if (way.trip < nearest->trip) {
    nearest->trip = way.trip;
    nearest->choice = way.choice;
  }
  nearest->devices = std::min(nearest->devices, way.devices);
  nearest->least_flight = std::min(nearest->least_flight, way.least_flight);
  nearest->most_flight = std::max(nearest->most_flight, way.most_flight);
}

/// Adds stages of nodes that were left out before the first stage of the set: such stages take devices and raise the
/// microbatches in flight.
void TripBound::add_empty_stages(std::uint32_t set) {
  if (is_whole()) return;
  for (int d = 0; d <= devices_; d += step_) {
    const std::size_t from = slot(set, d);
    for (std::size_t i = 0; i < ways_at_[from]; ++i) {
      const std::size_t at = from * most_ways_ + i;
      for (const ReplicaRange& r : replicas_) {
        const Way later = ways_[at];
        if (later.devices + r.first > devices_) break;
        add_way(set, {later.trip,
                      least_flight(later.least_flight, r),
                      most_flight(later.most_flight, r),
                      later.devices + r.first,
                      {set, -r.first, at}});
      }
    }
  }
}

/// Whether a stage of the nodes of `set` outside `below` has memory for `held` microbatches.
bool TripBound::fits(const Sums& sums, std::uint32_t set, std::uint32_t below, const ReplicaRange& replicas,
                     std::int64_t held) const {
  if (!limit_) return true;
  StageBytes bytes = sums.bytes;
  bytes.per_microbatch += received_[set];
  return costs_.least_peak(bytes, held, replicas.first, sums.workspace.most, false, replicas.last) +
             costs_.message_margin(incoming_[set] + outgoing_[below]) <=
         *limit_;
}

/// The Prefix of `below` after a stage of the nodes of `set` outside `below`, whose devices begin with `first` if they
/// are in order.
TripBound::Prefix TripBound::after(const Sums& sums, std::uint32_t set, std::uint32_t below, const Load& load,
                                   int first, const Prefix& prefix) const {
  const bool on_path = path_at_[below] > path_at_[set];
  if (!on_path || path_at_[below] == to_int(path_.size())) return prefix;
  const PathHop hop = hop_at(path_at_[below], first + load.replicas.first);
  const Seconds begin = std::max(prefix.before, begin_[set].forward);
  Prefix out;
  out.before = begin + sums.forward + hop.forward;
  // Without a gradient that comes back, nothing of what came before waits for what comes later.
  out.around = out.before;
  if (!hops_[to_index(path_at_[below] - 1)].returns) return out;
  out.around = std::max(std::max(prefix.around, begin_[set].both), begin + load.reduced) + sums.forward + hop.forward +
               sums.back + hop.back;
  return out;
}

/// Whether a stage of the nodes of `set` outside `below` keeps within the time and fits in memory, if the stages
/// `later` divide `below`. Sets `trip` to the round trip of the stage.
bool TripBound::keeps(const Sums& sums, std::uint32_t set, std::uint32_t below, const Load& load, const Way& later,
                      const Prefix& prefix, Seconds& trip) const {
  const ReplicaRange& replicas = load.replicas;
  const std::int64_t share = replicas.share;
  std::int64_t in_flight = share;
  if (alternates_)
    in_flight = std::min<std::int64_t>(share, flight(later.most_flight, replicas.first) / replicas.first);
  const std::int64_t held = costs_.least_in_flight(flight(later.least_flight, replicas.last), replicas.last);
  if (!fits(sums, set, below, replicas, held)) return false;
  const bool on_path = path_at_[below] > path_at_[set];
  const bool is_last = path_at_[below] == to_int(path_.size());
  const Seconds before = on_path ? std::max(prefix.before, begin_[set].forward) : begin_[set].forward;
  const Seconds both = on_path ? std::max(prefix.around, begin_[set].both) : begin_[set].both;
  Seconds all = load.computed;
  trip = later.trip;
  if (on_path) {
    trip = sums.forward + sums.back;
    const bool is_first = path_at_[set] == 0;
    const int end = devices_ - later.devices;  // of the stage's devices if these are in order
    const int first = end - replicas.first;
    Seconds wait = is_first ? Seconds(0) : port_wait(path_at_[set], share, first, end, first);
    if (!is_last) {
      const PathHop hop = hop_at(path_at_[below], end);
      trip += hop.forward + hop.back + later.trip;
      wait = std::max(wait, port_wait(path_at_[below], share, first, end, end));
    }
    all = std::max(all, trip + wait);
    all = std::max(all, trips_of(trip, sums.forward, sums.back, share, in_flight));
  }
  return std::max(before + load.reduced, both) + all <= time_ && before + load.busy <= time_;
}

bool TripBound::go_back(const std::function<bool()>& stop) {
  const std::size_t slots = lattice_.count() * places();
  ways_.resize(slots * most_ways_);
  ways_at_.assign(slots, 0);
  for (int idle = 0; idle <= (in_order_ ? devices_ : 0); ++idle) add_way(0, {Seconds(0), 0, 0, idle, {}});
  add_empty_stages(0);
  for (std::uint32_t set = 1; set < lattice_.count(); ++set) {
    if (!is_reached(set)) continue;
    const bool finished = each_pair(set, stop, [&](std::uint32_t below) {
      for (const ReplicaRange& r : ranges()) {
        Load load = load_of(now_, r);
        if (std::max(begin_[set].forward + load.reduced, begin_[set].both) + load.computed > time_ ||
            begin_[set].forward + load.busy > time_)
          continue;
        if (!fits(now_, set, below, r, 1)) continue;
        for (int others = 0; others + r.first <= devices_; others += step_) {
          const std::size_t from = slot(below, others);
          for (std::size_t i = 0; i < ways_at_[from]; ++i) {
            const std::size_t at = from * most_ways_ + i;
            const Way& later = ways_[at];
            const int devices = later.devices + r.first;
            if (devices > devices_) continue;
            const std::size_t earlier = slot(set, devices_ - devices);
            if (before_[earlier] >= kNever) continue;
            place(load, now_, devices_ - devices);
            Seconds trip;
            if (!keeps(now_, set, below, load, later, {before_[earlier], around_[earlier]}, trip)) continue;
            add_way(set, {trip,
                          least_flight(later.least_flight, r),
                          most_flight(later.most_flight, r),
                          devices,
                          {below, r.first, at}});
          }
        }
      }
    });
    if (!finished) return false;
    add_empty_stages(set);
  }
  return true;
}

std::optional<bool> TripBound::refutes(Seconds time, int devices, const std::function<bool()>& stop, bool in_order) {
  time_ = time * (1 + kRounding);
  in_order_ = in_order;
  devices_ = std::min(devices, useful_devices_);
  step_ = devices_ / BoundLimits::kEveryDevice + 1;
  stopped_ = false;
  if (!go_forward(stop)) return std::nullopt;
  if (!is_reached(0)) return true;
  if (!go_back(stop)) return std::nullopt;
  return !is_any_way();
}

bool TripBound::is_any_way() const {
  for (int d = in_order_ ? devices_ : 0; d <= devices_; d += step_) {
    if (ways_at_[slot(lattice_.full(), d)] > 0) return true;
  }
  return false;
}

bool TripBound::visit_splits(Seconds time, const std::function<Seconds(const Split&)>& visit,
                             const std::function<bool()>& stop) {
  time_ = time * (1 + kRounding);
  visit_ = &visit;
  chain_.clear();
  stopped_ = false;
  return go_on(lattice_.full(), devices_, {}, stop);
}

/// Visits all splits that divide `set` over at most `devices`, after the stages of chain_.
bool TripBound::go_on(std::uint32_t set, int devices, const Prefix& prefix, const std::function<bool()>& stop) {
  if (stop()) return false;
  if (set == 0) {
    time_ = std::min(time_, (*visit_)(split_of(chain_)) * (1 + kRounding));
    return true;
  }
  std::vector<Next> all;
  const bool finished = each_pair(set, stop, [&](std::uint32_t below) { all.push_back({below, now_}); });
  if (!finished) return false;
  for (const Next& next : all) {
    for (int r = 1; r <= std::min(devices, most_replicas_); ++r) {
      const int first = devices_ - devices;  // if devices are in order
      Load load = load_of(next.sums, {r, r, (costs_.microbatches() + r - 1) / r});
      if (begin_[set].forward + std::max(load.computed, load.busy) > time_) continue;
      place(load, next.sums, first);
      bool possible = false;
      for (int d = in_order_ ? devices - r : 0; d <= devices - r && !possible; d += step_) {
        possible = std::ranges::any_of(ways(slot(next.below, d)), [&](const Way& later) {
          Seconds trip;
          return later.devices <= devices - r && keeps(next.sums, set, next.below, load, later, prefix, trip);
        });
      }
      if (!possible) continue;
      chain_.push_back({next.below, r, 0});
      const bool went = go_on(next.below, devices - r, after(next.sums, set, next.below, load, first, prefix), stop);
      chain_.pop_back();
      if (!went) return false;
    }
  }
  return true;
}

Split TripBound::split_from(const Way& way) const {
  std::vector<StageChoice> chain;
  for (const Way* at = &way;; at = &ways_[at->choice.next]) {
    if (at->choice.replicas == 0) break;  // nothing is left
    if (at->choice.replicas > 0) chain.push_back(at->choice);
  }
  return split_of(chain);
}

Split TripBound::split_of(const std::vector<StageChoice>& chain) const {
  Split out;
  std::vector<int>& stage_of = out.stage_of_node;
  stage_of.assign(to_index(costs_.dag().nodes), -1);
  std::uint32_t set = lattice_.full();
  for (const StageChoice& choice : chain) {
    for (const int node : lattice_.members(set, choice.below))
      stage_of[to_index(kept_[to_index(node)])] = to_int(out.replicas.size());
    out.replicas.push_back(choice.replicas);
    set = choice.below;
  }
  // Others where the last of what they read is; without any, where the first of their readers is.
  const int nodes = costs_.dag().nodes;
  std::vector<std::vector<int>> producers(to_index(nodes));
  std::vector<std::vector<int>> consumers(to_index(nodes));
  for (const auto& [from, to] : costs_.dag().edges) {
    producers[to_index(to)].push_back(from);
    consumers[to_index(from)].push_back(to);
  }
  const std::vector<int> known = stage_of;
  for (int v = 0; v < nodes; ++v) {
    if (stage_of[to_index(v)] >= 0) continue;
    for (const int from : producers[to_index(v)])
      stage_of[to_index(v)] = std::max(stage_of[to_index(v)], stage_of[to_index(from)]);
  }
  for (int v = nodes; v-- > 0;) {
    if (known[to_index(v)] >= 0 || stage_of[to_index(v)] >= 0) continue;
    int first = to_int(out.replicas.size()) - 1;
    for (const int to : consumers[to_index(v)]) first = std::min(first, stage_of[to_index(to)]);
    stage_of[to_index(v)] = std::max(0, first);
  }
  return out;
}

std::vector<Split> TripBound::splits() const {
  std::vector<Split> out;
  std::optional<Seconds> best;
  for (int d = 0; d <= devices_; d += step_) {  // more devices only for a shorter trip
    for (const Way& way : ways(slot(lattice_.full(), d))) {
      if (best && way.trip >= *best) continue;
      best = way.trip;
      Split split = split_from(way);
      if (std::ranges::find(out, split) == out.end()) out.push_back(std::move(split));
    }
  }
  return out;
}

}  // namespace stagecraft::partitioner
