#include "partitioner/search/chain_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "costmodel/index.h"

namespace stagecraft::partitioner {
namespace {

constexpr std::int32_t kNone = 1 << 28;
constexpr Seconds kUnborn(-1);
/// Rounding of sums that are taken in different orders.
constexpr double kRounding = 1e-11;

}  // namespace

ChainSearch::ChainSearch(const PipelineCosts& costs, const Lattice& lattice, SearchSpace space,
                         std::function<bool()> stop)
    : costs_(costs), lattice_(lattice), space_(std::move(space)), stop_(std::move(stop)), walk_(lattice) {
  devices_ = costs.devices();
  if (!space_.replicas.empty()) space_.stages = to_int(space_.replicas.size());
  most_replicas_ = devices_;
  if (costs.waits()) most_replicas_ = std::min(most_replicas_, costs.microbatches());
  if (!space_.replicas.empty()) most_replicas_ = *std::max_element(space_.replicas.begin(), space_.replicas.end());
  counts_ = space_.stages ? *space_.stages + 1 : 1;
  table_.resize(to_index(counts_) * lattice.count());
  find_ways();
  if (space_.chunks > 1) {
    work_.resize(lattice.count());
    for (std::uint32_t set = 1; set < lattice.count(); ++set) {
      const Lattice::Cover& cover = lattice.covers(set).front();
      work_[set] = work_[cover.below] + costs.node(cover.node).least;
    }
  }
}

/// Finds the longest way through the layers to each node, and for each set the least way to a stage that begins in the
/// set: such a stage holds one of the nodes that are ready there.
void ChainSearch::find_ways() {
  begin_.assign(lattice_.count(), {});
  if (!costs_.waits()) return;
  const int nodes = costs_.dag().nodes;
  std::vector<Arrival> way(to_index(nodes));
  for (int v = 0; v < nodes; ++v) {
    for (const int number : costs_.read_by(v)) {
      const CrossingValue& value = costs_.values()[to_index(number)];
      const Arrival& there = way[to_index(value.producer)];
      const NodeCosts& producer = costs_.node(value.producer);
      Arrival& here = way[to_index(v)];
      here.forward = std::max(here.forward, there.forward + producer.forward);
      if (returns(value)) here.back = std::max(here.back, there.back + producer.least_return);
    }
  }
  for (std::uint32_t set = 1; set < lattice_.count(); ++set) {
    std::optional<Seconds> forward;
    std::optional<Seconds> both;
    for (const Lattice::Cover& cover : lattice_.covers(set)) {
      // A ready node reads only values of other stages.
      Arrival here;
      for (const int number : costs_.read_by(cover.node)) {
        const CrossingValue& value = costs_.values()[to_index(number)];
        const Arrival& there = way[to_index(value.producer)];
        const NodeCosts& producer = costs_.node(value.producer);
        // With chunks, that stage may be on the same device.
        const Seconds there_to_here = space_.chunks > 1 ? Seconds(0) : value.least_forward;
        const Seconds and_back = space_.chunks > 1 ? Seconds(0) : value.least_back;
        here.forward = std::max(here.forward, there.forward + producer.forward + there_to_here);
        if (returns(value)) here.back = std::max(here.back, there.back + producer.least_return + and_back);
      }
      forward = forward ? std::min(*forward, here.forward) : here.forward;
      both = both ? std::min(*both, here.forward + here.back) : here.forward + here.back;
    }
    begin_[set] = {*forward, *both - *forward};
  }
}

/// Whether a gradient of the value goes back after the last work of a stage that reads the value. If the schedule
/// splits the backward, the second part can be done meanwhile.
bool ChainSearch::returns(const CrossingValue& value) const {
  return value.gradient && !costs_.schedule().splits_backward;
}

std::size_t ChainSearch::slot(int stages_left, std::uint32_t set) const {
  return (space_.stages ? to_index(stages_left) : 0) * lattice_.count() + set;
}

int ChainSearch::devices_for(int stages_done, std::uint32_t left) const {
  const int stages_left = space_.stages ? *space_.stages - stages_done : 0;
  return stages_left < 0 ? kNone : table_[slot(stages_left, left)];
}

bool ChainSearch::should_stop() {
  constexpr std::uint64_t kOften = 1 << 12;
  return ++asked_ % kOften == 0 && stop_ && stop_();
}

Seconds ChainSearch::bound(const Sums& sums, int replicas, Seconds before, Seconds after) const {
  const Seconds computed = sums.least * costs_.share(replicas);
  if (!costs_.waits()) return computed;
  const Seconds reduced = costs_.least_reduce(sums.untied, replicas, sums.back) + sums.update;
  return before + std::max(computed + std::max(reduced, after), costs_.least_loading(sums.loading, replicas));
}

/// The smallest number of replicas from `from` to `most` with a bound of at most time_; 0 if there is none.
int ChainSearch::least_replicas(const Sums& sums, Seconds before, Seconds after, int from, int most) const {
  const int m = costs_.microbatches();
  for (int r = from; r <= most;) {
    if (bound(sums, r, before, after) <= time_) return r;
    if (!costs_.waits()) {
      ++r;
      if (sums.least > Seconds(0) && time_ > Seconds(0))
        r = std::max(r, static_cast<int>(std::min(1e9, std::floor(m * (sums.least / time_)))));
      continue;
    }
    // Jumps to the fewest replicas with one microbatch less each: numbers in between do not compute faster.
    const int share = static_cast<int>(costs_.share(r));
    if (share <= 1) return 0;
    int wanted = share - 1;
    const Seconds room = time_ - before;
    if (room < sums.least) return 0;
    if (sums.least > Seconds(0)) wanted = static_cast<int>(std::min<double>(wanted, std::floor(room / sums.least) + 1));
    r = std::max(r + 1, (m + wanted - 1) / wanted);
  }
  return 0;
}

void ChainSearch::add(int node) {
  saved_.push_back({now_, before_now_, after_now_});
  const NodeCosts& costs = costs_.node(node);
  now_.forward += costs.forward;
  now_.back += costs.least_return;
  now_.least += costs.least;
  now_.update += costs.update;
  now_.untied += costs.untied;
  now_.bytes += costs.bytes;
  now_.loading = std::max(now_.loading, costs.loading);
  if (arrivals_.empty()) return;
  for (const int number : costs_.read_by(node)) {
    const CrossingValue& value = costs_.values()[to_index(number)];
    const Arrival& arrival = arrivals_[to_index(number)];
    if (arrival.forward < Seconds(0)) continue;
    const bool is_inside = space_.chunks > 1 && arrival.position == next_position();
    before_now_ = std::max(before_now_, arrival.forward + (is_inside ? Seconds(0) : value.least_forward));
    if (returns(value)) after_now_ = std::max(after_now_, arrival.back + (is_inside ? Seconds(0) : value.least_back));
  }
}

/// Whether no stage that contains these layers fits.
bool ChainSearch::is_too_large(const Sums& sums) const {
  return space_.limit && costs_.least_peak(sums.bytes, 1, 1) > *space_.limit;
}

void ChainSearch::remove() {
  now_ = saved_.back().sums;
  before_now_ = saved_.back().before;
  after_now_ = saved_.back().after;
  saved_.pop_back();
}

std::optional<bool> ChainSearch::refutes(Seconds time) {
  time_ = time * (1 + kRounding);
  arrivals_.clear();
  std::fill(table_.begin(), table_.end(), kNone);
  table_[0] = 0;
  const double least_share = costs_.share(most_replicas_);
  bool stopped = false;
  for (std::uint32_t set = 1; set < lattice_.count() && !stopped; ++set) {
    now_ = {};
    before_now_ = begin_[set].forward;
    after_now_ = begin_[set].back;
    walk_.each_subset(
        set, [&](int node) { add(node); }, [&](int) { remove(); },
        [&](std::uint32_t below) {
          if (stopped || should_stop()) {
            stopped = true;
            return Descend::No;
          }
          if (before_now_ + now_.least * least_share > time_ || is_too_large(now_)) return Descend::No;
          if (!space_.stages) {
            const std::int32_t others = table_[below];
            std::int32_t& least = table_[set];
            if (others >= std::min(least, static_cast<std::int32_t>(devices_) + 1)) return Descend::Yes;
            const int r = least_replicas(now_, before_now_, after_now_, 1, std::min(most_replicas_, devices_ - others));
            if (r > 0) least = std::min(least, others + r);
            return Descend::Yes;
          }
          int any = -1;
          for (int left = 1; left < counts_; ++left) {
            const std::int32_t others = table_[slot(left - 1, below)];
            if (others >= kNone) continue;
            int r = 0;
            if (space_.replicas.empty()) {
              if (any < 0) any = least_replicas(now_, before_now_, after_now_, 1, most_replicas_);
              r = any;
            } else {
              const int given = space_.replicas[to_index(counts_ - 1 - left)];
              r = bound(now_, given, before_now_, after_now_) <= time_ ? given : 0;
            }
            std::int32_t& least = table_[slot(left, set)];
            if (r > 0) least = std::min(least, others + r);
          }
          return Descend::Yes;
        });
  }
  if (stopped) return std::nullopt;
  const std::int32_t needed = devices_for(0, lattice_.full());
  if (space_.chunks == 1) return needed > devices_;
  const int positions = *space_.stages / space_.chunks;
  return needed >= kNone || work_[lattice_.full()] * (costs_.share(space_.replicas.front()) / positions) > time_;
}

bool ChainSearch::visit_splits(Seconds time, const std::function<Seconds(const Split&)>& visit) {
  time_ = time * (1 + kRounding);
  visit_ = &visit;
  arrivals_.assign(costs_.values().size() + 1, {kUnborn, Seconds(0)});  // never empty, see add
  stages_.clear();
  replicas_.clear();
  const std::size_t positions = space_.chunks > 1 ? to_index(*space_.stages / space_.chunks) : 0;
  load_.assign(positions, Seconds(0));
  start_.assign(positions, Seconds(0));
  return go_on(lattice_.full(), 0);
}

/// Whether, with chunks, the next stage leaves the devices enough time for itself and for what is left.
bool ChainSearch::fits_positions(const Sums& sums, std::uint32_t left, Seconds before) const {
  const std::size_t positions = load_.size();
  const std::size_t at = to_index(next_position());
  const double m = costs_.share(space_.replicas.front());
  const Seconds start = stages_.size() < positions ? before : start_[at];
  if (start + (load_[at] + sums.least) * m > time_) return false;
  Seconds room;
  for (std::size_t p = 0; p < positions; ++p)
    room += (time_ - (p == at ? start : start_[p])) / m - load_[p] - (p == at ? sums.least : Seconds(0));
  return work_[left] <= room * (1 + kRounding);
}

std::vector<ChainSearch::Next> ChainSearch::continuations(std::uint32_t left, int devices) {
  std::vector<Next> out;
  const int done = to_int(stages_.size());
  const double least_share = costs_.share(most_replicas_);
  now_ = {};
  before_now_ = begin_[left].forward;
  after_now_ = Seconds(0);
  walk_.each_subset(
      left, [&](int node) { add(node); }, [&](int) { remove(); },
      [&](std::uint32_t below) {
        if (before_now_ + now_.least * least_share > time_ || is_too_large(now_)) return Descend::No;
        const int others = devices_for(done + 1, below);
        if (others >= kNone || (space_.chunks == 1 && devices + others >= devices_)) return Descend::Yes;
        if (space_.chunks > 1) {
          if (fits_positions(now_, below, before_now_)) out.push_back({below, before_now_, after_now_, now_});
          return Descend::Yes;
        }
        const int most = std::min(most_replicas_, devices_ - devices - others);
        const bool possible = space_.replicas.empty()
                                  ? least_replicas(now_, before_now_, after_now_, 1, most) > 0
                                  : bound(now_, space_.replicas[to_index(done)], before_now_, after_now_) <= time_;
        if (possible) out.push_back({below, before_now_, after_now_, now_});
        return Descend::Yes;
      });
  return out;
}

/// The pipeline position of the stage after those so far, with chunks.
int ChainSearch::next_position() const {
  return position_of(to_int(stages_.size()), to_int(load_.size()), costs_.schedule().placement);
}

/// Sets the arrivals of the values that the stage makes or passes on.
void ChainSearch::arrive(const std::vector<int>& nodes, const Next& next, int replicas) {
  if (!costs_.waits()) return;
  const Seconds end = next.before + next.sums.forward;
  const Seconds reduce = costs_.least_reduce(next.sums.untied, replicas, next.sums.back) + next.sums.update;
  const Seconds back = next.sums.back + std::max(reduce, next.after);
  const auto set = [&](int number) {
    const CrossingValue& value = costs_.values()[to_index(number)];
    arrivals_[to_index(number)] = {end, returns(value) ? back : Seconds(0), space_.chunks > 1 ? next_position() : -1};
  };
  for (const int node : nodes) {
    for (const int number : costs_.read_by(node)) set(number);
    for (const int number : costs_.made_by(node)) set(number);
  }
}

bool ChainSearch::take(const Next& next, const std::vector<int>& nodes, int replicas, int devices) {
  const std::vector<Arrival> before = arrivals_;
  arrive(nodes, next, replicas);
  const std::size_t positions = load_.size();
  const std::size_t at = positions > 0 ? to_index(next_position()) : 0;
  const auto loads = std::pair(load_, start_);
  if (positions > 0) {
    if (stages_.size() < positions) start_[at] = next.before;
    load_[at] += next.sums.least;
  }
  stages_.push_back(nodes);
  replicas_.push_back(replicas);
  const bool finished = go_on(next.left, devices + replicas);
  stages_.pop_back();
  replicas_.pop_back();
  std::tie(load_, start_) = loads;
  arrivals_ = before;
  return finished;
}

void ChainSearch::report() {
  Split split;
  split.chunks = space_.chunks;
  split.replicas = replicas_;
  split.stage_of_node.resize(to_index(costs_.dag().nodes));
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    for (const int node : stages_[s]) split.stage_of_node[to_index(node)] = to_int(s);
  }
  time_ = std::min(time_, (*visit_)(split) * (1 + kRounding));
}

bool ChainSearch::go_on(std::uint32_t left, int devices) {
  if (stop_ && stop_()) return false;
  if (left == 0) {
    if (!space_.stages || to_int(stages_.size()) == *space_.stages) report();
    return true;
  }
  const int done = to_int(stages_.size());
  if (space_.stages && done == *space_.stages) return true;
  for (const Next& next : continuations(left, devices)) {
    const std::vector<int> nodes = lattice_.members(left, next.left);
    if (space_.chunks > 1) {
      if (!fits_positions(next.sums, next.left, next.before)) continue;
      if (!take(next, nodes, space_.replicas.front(), devices)) return false;
      continue;
    }
    const int most = std::min(most_replicas_, devices_ - devices - devices_for(done + 1, next.left));
    for (int r = 1; r <= most; ++r) {
      if (!space_.replicas.empty() && r != space_.replicas[to_index(done)]) continue;
      if (bound(next.sums, r, next.before, next.after) > time_) continue;
      if (!take(next, nodes, r, devices)) return false;
    }
  }
  return true;
}

}  // namespace stagecraft::partitioner
