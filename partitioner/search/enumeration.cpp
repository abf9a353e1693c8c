#include "partitioner/search/enumeration.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "costmodel/index.h"
#include "partitioner/search/search_tuning.h"

namespace stagecraft::partitioner {
namespace {

/// Calls `visit` with every split within a time; `visit` returns the time for all further splits. False if the visits
/// were stopped.
using EachSplit = std::function<bool(const std::function<Seconds(const Split&)>& visit)>;

/// Predicts the splits that `visit_splits` finds whose own bounds are within `time` and below the last wanted step, the
/// smallest bounds first. False if time is up.
bool predict_up_to(const SearchContext& context, Seconds time, const EachSplit& visit_splits) {
  std::vector<std::pair<Seconds, Split>> waiting;
  const auto empty = [&] {
    std::ranges::stable_sort(waiting, {}, [](const auto& entry) { return entry.first; });
    for (const auto& [bound, split] : waiting) {
      if (context.time.is_up()) return false;
      if (!context.plans.is_excluded(bound)) context.plans.step_of(split);
    }
    waiting.clear();
    return true;
  };
  const auto now = [&] { return std::min(context.plans.last_wanted().value_or(time), time); };
  const bool finished = visit_splits([&](const Split& split) {
    if (!context.is_wanted(split) && context.constraints.replicas.empty()) return now();
    const auto bound = context.costs.lower_bound(split);
    if (!bound || *bound > time * (1 + kEqual) || context.plans.is_excluded(*bound)) return now();
    if (context.limit && context.costs.least_memory(split) > *context.limit) return now();
    waiting.emplace_back(*bound, split);
    if (waiting.size() >= SearchTuning::kMostWaiting) empty();
    return now();
  });
  return empty() && finished;
}

/// Calls `all_up_to` with times that rise from `low` until they reach the last wanted step. `all_up_to` predicts all
/// splits up to a bound, and returns false if time was up. Returns the bound up to which no split was left out: at
/// least `done`, and more if `is_complete`, that is, if `all_up_to` leaves no split out.
Seconds enumerate(const SearchContext& context, Seconds low, Seconds done, bool is_complete,
                  const std::function<bool(Seconds time)>& all_up_to) {
  const auto last = [&] { return context.plans.last_wanted().value_or(kForever); };
  double beyond = SearchTuning::kBoundPrecision;
  while (true) {
    const bool is_last = beyond > SearchTuning::kMostBeyond || low <= Seconds(0);
    const Seconds time = std::min(last(), is_last ? kForever : low * (1 + beyond));
    if (!all_up_to(time)) return done;
    if (is_complete) done = std::max(done, std::min(last(), time));
    if (time >= last()) return done;
    beyond *= 2;
  }
}

}  // namespace

Seconds least_time(Seconds low, Seconds high, double precision, double part,
                   const std::function<std::optional<bool>(Seconds time)>& refutes) {
  while (low > Seconds(0) && low * (1 + precision) < high) {
    const Seconds middle(high >= kForever             ? 2 * low.value
                         : high.value / low.value > 4 ? std::sqrt(low.value * high.value)
                                                      : low.value + part * (high.value - low.value));
    const std::optional<bool> refuted = refutes(middle);
    if (!refuted || middle > kForever / 4) break;
    (*refuted ? low : high) = middle;
  }
  return low;
}

std::unique_ptr<TripSearch> TripSearch::of(const SearchContext& context) {
  if (chunk_counts(context.constraints).front() != 1) return nullptr;
  std::unique_ptr<TripBound> bound = TripBound::of(context.costs, context.countable(), SearchTuning::kMostTripSets);
  if (!bound) return nullptr;
  return std::unique_ptr<TripSearch>(new TripSearch(context, std::move(bound)));
}

TripSearch::TripSearch(const SearchContext& context, std::unique_ptr<TripBound> bound)
    : context_(context), bound_(std::move(bound)) {}

Seconds TripSearch::least(Seconds low, int devices, double precision) {
  const auto stop = context_.time.stop();
  return least_time(low, kForever, precision, 0.5, [&](Seconds time) { return bound_->refutes(time, devices, stop); });
}

Seconds TripSearch::least_in_order(Seconds low) {
  const auto stop = context_.time.stop();
  return least_time(
      low, context_.plans.last_wanted().value_or(kForever), SearchTuning::kBoundPrecision, 0.5,
      [&](Seconds time) { return bound_->refutes(time, context_.costs.devices(), stop, /*in_order=*/true); });
}

std::vector<Split> TripSearch::suggested(Seconds least, int devices, bool in_order) {
  const auto stop = context_.time.stop();
  std::vector<Split> out;
  for (const double beyond : {SearchTuning::kBoundPrecision, 0.02, 0.05, 0.1, 0.2, 0.4}) {
    const Seconds time = least * (1 + beyond);
    if (in_order && time > context_.plans.last_wanted().value_or(time)) break;
    const std::optional<bool> refuted = bound_->refutes(time, devices, stop, in_order);
    if (!refuted) break;
    if (*refuted) continue;
    for (Split& split : bound_->splits()) {
      if (context_.is_wanted(split) && context_.costs.can_run(split) && std::ranges::find(out, split) == out.end())
        out.push_back(std::move(split));
    }
  }
  return out;
}

std::vector<Split> TripSearch::suggested_that_fit(Seconds least, int devices, bool in_order) {
  std::vector<Split> out;
  const std::optional<Bytes> limit = context_.countable();
  for (const double less : SearchTuning::kLessMemory) {
    if (limit) bound_->limit_to(Bytes(static_cast<std::int64_t>(static_cast<double>(limit->value) * (1 - less))));
    const std::vector<Split> more = suggested(least, devices, in_order);
    for (const Split& split : more) {
      if (std::ranges::find(out, split) == out.end()) out.push_back(split);
    }
    if (!limit || (!more.empty() && context_.plans.fits(more.front())) || context_.time.is_up()) break;
  }
  if (limit) bound_->limit_to(*limit);
  return out;
}

Seconds TripSearch::enumerate_all(Seconds low, int devices) {
  const auto stop = context_.time.stop();
  return enumerate(context_, low, low, is_whole(), [&](Seconds time) {
    const std::optional<bool> refuted = bound_->refutes(time, devices, stop, knows_order());
    if (!refuted || *refuted) return refuted.has_value();
    return predict_up_to(context_, time, [&](const auto& visit) { return bound_->visit_splits(time, visit, stop); });
  });
}

ChainSpaces::ChainSpaces(const SearchContext& context) : context_(context) {
  make_lattice();
  const Constraints& constraints = context.constraints;
  SearchSpace space;
  space.limit = context.countable();
  space.stages = constraints.stages;
  space.replicas = constraints.replicas;
  if (context.costs.schedule().equal_replicas || constraints.chunks.value_or(1) != 1)
    add_equal_replicas(std::move(space));
  else
    add(space);
}

void ChainSpaces::make_lattice() {
  const Dag& dag = context_.costs.dag();
  lattice_ = Lattice::of(reversed(dag), SearchTuning::kMostSets);
  if (lattice_) return;
  is_whole_ = false;
  Dag line{dag.nodes, {}};
  for (int node = 1; node < line.nodes; ++node) line.edges.emplace_back(node, node - 1);
  lattice_ = Lattice::of(line, SearchTuning::kMostSets);
}

void ChainSpaces::add(const SearchSpace& space) {
  const std::size_t rows = space.stages ? to_index(*space.stages) + 1 : 1;
  if (rows * lattice_->count() > SearchTuning::kMostTableEntries) {
    is_whole_ = false;
    return;
  }
  spaces_.push_back(std::make_unique<ChainSearch>(context_.costs, *lattice_, space, context_.time.stop()));
}

void ChainSpaces::add_equal_replicas(SearchSpace space) {
  const std::vector<int> wanted = std::exchange(space.replicas, {});
  if (std::ranges::any_of(wanted, [&](int replicas) { return replicas != wanted.front(); })) {
    is_whole_ = false;
    return;
  }
  for (const int chunks : chunk_counts(context_.constraints)) {
    space.chunks = chunks;
    for (int positions = 1; positions <= context_.costs.devices(); ++positions) {
      const int stages = positions * chunks;
      if (stages > context_.costs.dag().nodes || (space.stages && stages != *space.stages)) continue;
      for (int replicas = 1; positions * replicas <= context_.costs.devices(); ++replicas) {
        space.replicas.assign(to_index(stages), replicas);
        if (wanted.empty() ? replicas > context_.costs.microbatches() : wanted != space.replicas) continue;
        if (context_.costs.can_run({{}, space.replicas, chunks})) add(space);
      }
    }
  }
}

Seconds ChainSpaces::least(Seconds low, Seconds high) {
  if (!is_whole_) return low;
  return least_time(low, high, SearchTuning::kBoundPrecision, 0.5, [&](Seconds time) -> std::optional<bool> {
    for (const auto& space : spaces_) {
      const std::optional<bool> refuted = space->refutes(time);
      if (!refuted || !*refuted) return refuted;
    }
    return true;
  });
}

Seconds ChainSpaces::enumerate_all(Seconds low, Seconds done) {
  return enumerate(context_, low, done, is_whole_, [&](Seconds time) {
    for (const auto& space : spaces_) {
      const std::optional<bool> refuted = space->refutes(time);
      if (!refuted) return false;
      if (*refuted) continue;
      if (!predict_up_to(context_, time, [&](const auto& visit) { return space->visit_splits(time, visit); }))
        return false;
    }
    return true;
  });
}

}  // namespace stagecraft::partitioner
