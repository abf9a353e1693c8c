#include "partitioner/optimal.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <tuple>

#include "costmodel/index.h"
#include "partitioner/candidate.h"
#include "partitioner/exact/chain_search.h"
#include "partitioner/exact/lattice.h"
#include "partitioner/exact/local_search.h"
#include "partitioner/exact/path_bound.h"
#include "partitioner/exact/pipeline_costs.h"
#include "partitioner/exact/placement.h"
#include "partitioner/exact/trip_bound.h"
#include "partitioner/given_split.h"
#include "partitioner/ranking.h"

namespace stagecraft::partitioner {
namespace {

constexpr const char* kTimeLimit = "time-limit";
constexpr double kDefaultSeconds = 3;
/// Share of the time limit, and seconds, after which no more candidates of `auto` are predicted, once one fits.
constexpr double kDraftShare = 0.5;
constexpr double kDraftSeconds = 1;
/// Shares of what is left of it after which PathBound, TripBound, the local search, its random moves and the
/// bounds without splits give way.
constexpr double kPathShare = 0.12;
constexpr double kTripShare = 0.16;
constexpr double kPolishShare = 0.4;
constexpr double kShakeShare = 0.5;
constexpr double kBoundShare = 0.65;
/// And the search for plans that TripBound's enumeration ends, where it leaves nodes out.
constexpr double kTripsEnumerated = 0.8;
/// The first placements end after this share of the time; the last ones begin after the other.
constexpr double kPlaceShare = 0.16;
constexpr double kSearchShare = 0.9;
/// More down-sets than this are not followed along a path.
constexpr std::size_t kMostTripSets = 20'000;
/// Cuts that PathBound tells apart, in large graphs first fewer.
constexpr int kFewCuts = 200;
constexpr int kMostCuts = 1000;
/// More down-sets than this are not enumerated; then stages are cut from one order of the layers.
constexpr std::size_t kMostSets = 1'500'000;
/// Entries of all tables of a search.
constexpr std::size_t kMostEntries = 60'000'000;
constexpr int kMostChunks = 8;
/// Steps that differ by less, relatively, are equal.
constexpr double kEqual = 1e-9;
/// How closely the bound without splits is found, and the first enumeration goes beyond it.
constexpr double kBoundPrecision = 2e-3;
/// As far beyond what is known, relatively to the best plan, PathBound is asked: it refutes fast.
constexpr double kCautious = 0.15;
/// After an enumeration this far beyond it, relatively, comes one without a bound.
constexpr double kMostBeyond = 16;
constexpr Seconds kForever(1e100);
constexpr std::size_t kMostKept = 200;
constexpr std::size_t kMostWaiting = 20'000;
constexpr std::size_t kImproved = 12;  ///< plans of `auto` that the local search starts from
constexpr std::size_t kPolished = 4;   ///< plans that are improved by their predictions
constexpr std::size_t kCounts = 8;     ///< numbers of devices that the local search begins with
constexpr int kShakes = 100;           ///< random moves of the local search
constexpr double kCoarse = 0.02;       ///< as kBoundPrecision, where only plans are looked for
constexpr const char* kPlacedOrigin = ", placed";
constexpr int kPlaced = 5;  ///< plans whose placement is varied

class Clock {
 public:
  explicit Clock(double limit) : limit_(limit) {}
  [[nodiscard]] bool is_past(double share) const { return passed() > share * limit_; }
  /// Seconds.
  [[nodiscard]] double passed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  /// From now on shares are those of the time that is left, but of no less than half.
  void start_again() {
    limit_ = std::max(limit_ / 2, limit_ - passed());
    start_ = std::chrono::steady_clock::now();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double limit_;
};

int devices_of(const RankedPlan& ranked) {
  std::set<int> out;
  for (const Stage& stage : ranked.plan.stages) out.insert(stage.devices.begin(), stage.devices.end());
  return to_int(out.size());
}

bool is_in_order(const Candidate& candidate) {
  int next = 0;
  for (const std::vector<int>& devices : candidate.devices) {
    for (const int device : devices) {
      if (device != next++) return false;
    }
  }
  return candidate.warmups.empty();
}

/// The plans that were predicted, and what is known about all others.
class Search {
 public:
  Search(const Graph& graph, const Topology& topology, const CostModel& model, const Constraints& constraints)
      : graph_(graph),
        topology_(topology),
        model_(model),
        constraints_(constraints),
        limit_(memory_limit(topology, constraints)),
        costs_(graph, topology, constraints.plan),
        clock_(option<double>(constraints.options, kTimeLimit).value_or(kDefaultSeconds)) {}

  StrategyResult run() {
    if (costs_.dag().nodes == 0) return Infeasible{"the graph has no layers besides its inputs"};
    Drafts found = drafts(graph_, topology_, constraints_);
    ranking_.skipped = std::move(found.skipped);
    try_drafts(found.plans);
    clock_.start_again();
    make_lattice();
    make_spaces();
    Seconds low = least_bound();
    low = larger(low, follow_path(low, kPathShare));
    low = larger(low, follow_trips(low));
    place(kPlaceShare);
    if (!spaces_.empty()) {
      improve(low);
      if (best_ && !is_bound_by_trips()) {
        low = larger(low, follow_path(low, kBoundShare));
        low = larger(low, bisect(low, *best_, kBoundShare));
      }
      low = larger(low, enumerate(low));
    }
    place(1);
    return result(low);
  }

 private:
  static Seconds larger(Seconds a, Seconds b) { return a < b ? b : a; }
  [[nodiscard]] bool is_excluded(Seconds bound) const { return best_ && bound >= *best_ * (1 - kEqual); }

  static void forget_spans(RankedPlan& ranked) { std::vector<Span>().swap(ranked.prediction.timeline.spans); }

  /// The step of a plan that fits in memory.
  std::optional<Seconds> predict(const std::string& origin, const Candidate& candidate) {
    try {
      if (limit_) {
        const Plan plan = plan_of_candidate(graph_, topology_, candidate, constraints_.plan);
        if (model_.memory(graph_, topology_, plan).peak > *limit_) return std::nullopt;
      }
      RankedPlan ranked = predicted_plan(origin, graph_, topology_, candidate, model_, constraints_);
      if (ranked.fits && (!best_ || ranked.prediction.iteration < *best_)) best_ = ranked.prediction.iteration;
      // Only the best one is looked at closely; spans take most of the memory.
      if (!best_ || ranked.prediction.iteration > *best_) {
        forget_spans(ranked);
      } else {
        std::ranges::for_each(ranking_.plans, forget_spans);
      }
      const std::optional<Seconds> out = ranked.fits ? std::optional(ranked.prediction.iteration) : std::nullopt;
      ranking_.plans.push_back(std::move(ranked));
      if (ranking_.plans.size() >= 2 * kMostKept) {
        sort();
        ranking_.plans.resize(kMostKept);
      }
      return out;
    } catch (const std::invalid_argument&) {  // the schedule cannot run it
    } catch (const std::runtime_error&) {     // its lists deadlock
    }
    return std::nullopt;
  }

  using Key = std::tuple<std::vector<int>, std::vector<int>, int>;
  static Key key_of(const Split& split) { return {split.stage_of_node, split.replicas, split.chunks}; }

  /// The step of the split on devices in order; absent if it does not fit or cannot run. Each is predicted once.
  std::optional<Seconds> step_of(const Split& split) {
    const auto [known, fresh] = known_.emplace(key_of(split), std::nullopt);
    if (!fresh) return known->second;
    const Candidate candidate = given_candidate(graph_, costs_.partition(split), {}, {}, {},
                                                microbatches_of_a_step(constraints_.plan), split.chunks);
    const std::optional<Seconds> out = predict("optimal", candidate);
    known->second = out;
    keep(split, out);
    return out;
  }
  /// Remembers one of the best splits.
  void keep(const Split& split, std::optional<Seconds> step) {
    if (!step || (steps_.size() >= kPolished && *step >= steps_.back().first)) return;
    steps_.emplace_back(*step, split);
    std::ranges::stable_sort(steps_, {}, [](const auto& entry) { return entry.first; });
    if (steps_.size() > kPolished) steps_.pop_back();
  }

  /// The candidates of `auto`, by their bounds.
  void try_drafts(const std::vector<Drafted>& plans) {
    std::vector<std::pair<Seconds, const Drafted*>> order;
    for (const Drafted& draft : plans) {
      Seconds bound;
      if (is_in_order(draft.candidate)) {
        const Split split = costs_.split_of(draft.candidate.partition, draft.candidate.chunks);
        if (!known_.emplace(key_of(split), std::nullopt).second) continue;
        bound = costs_.lower_bound(split).value_or(Seconds(0));
        splits_.emplace_back(bound, split);
      }
      order.emplace_back(bound, &draft);
    }
    // Of equal bounds the simplest first: what is no better is not predicted then.
    std::ranges::stable_sort(order, {}, [](const auto& entry) {
      const std::vector<int>& replicas = entry.second->candidate.partition.replicas;
      return std::tuple(entry.first.value, std::accumulate(replicas.begin(), replicas.end(), 0), replicas.size());
    });
    for (const auto& [bound, draft] : order) {
      if (is_excluded(bound)) {
        ++ranking_.slower;
        continue;
      }
      // Of a large cluster, one prediction takes seconds.
      if (best_ && clock_.is_past(kDraftShare) && clock_.passed() > kDraftSeconds) break;
      const std::optional<Seconds> step = predict(draft->origin, draft->candidate);
      if (!is_in_order(draft->candidate)) continue;
      const Split split = costs_.split_of(draft->candidate.partition, draft->candidate.chunks);
      known_[key_of(split)] = step;
      keep(split, step);
    }
  }

  void make_lattice() {
    const Dag backwards = reversed(costs_.dag());
    lattice_ = Lattice::of(backwards, kMostSets);
    if (lattice_) return;
    is_whole_ = false;
    Dag line{costs_.dag().nodes, {}};
    for (int node = 1; node < line.nodes; ++node) line.edges.emplace_back(node, node - 1);
    lattice_ = Lattice::of(line, kMostSets);
  }

  void add_space(const SearchSpace& space) {
    const std::size_t rows = space.stages ? to_index(*space.stages) + 1 : 1;
    if (rows * lattice_->count() > kMostEntries) {
      is_whole_ = false;
      return;
    }
    spaces_.push_back(
        std::make_unique<ChainSearch>(costs_, *lattice_, space, [this] { return clock_.is_past(share_); }));
  }

  /// The parts of the search space, by chunks.
  void make_spaces() {
    SearchSpace space;
    space.limit = limit_;
    space.stages = constraints_.stages;
    space.replicas = constraints_.replicas;
    const PlanSettings& settings = constraints_.plan;
    const bool chunked = settings.listed.empty() && costs_.schedule().chunked;
    if (constraints_.chunks.value_or(1) == 1) add_space(space);
    if (!chunked && constraints_.chunks.value_or(1) == 1) return;
    if (std::ranges::any_of(space.replicas, [](int r) { return r != 1; })) {
      is_whole_ = false;
      return;
    }
    if (!space.replicas.empty()) space.stages = to_int(space.replicas.size());
    space.replicas.clear();
    for (int chunks = 2; chunks <= std::max(kMostChunks, constraints_.chunks.value_or(1)); ++chunks) {
      if (constraints_.chunks ? chunks != *constraints_.chunks : !std::has_single_bit(static_cast<unsigned>(chunks)))
        continue;
      space.chunks = chunks;
      const std::optional<int> wanted = constraints_.stages;
      for (int positions = 1; positions <= topology_devices(); ++positions) {
        const int stages = positions * chunks;
        if (stages > costs_.dag().nodes || (wanted && stages != *wanted)) continue;
        if (settings.microbatches % positions != 0) continue;
        space.stages = stages;
        add_space(space);
      }
    }
  }
  [[nodiscard]] int topology_devices() const { return costs_.devices(); }

  /// A bound for all plans, whatever the order of layers.
  [[nodiscard]] Seconds least_bound() const {
    Seconds sum;
    Seconds largest;
    for (int node = 0; node < costs_.dag().nodes; ++node) {
      sum += costs_.node(node).least;
      largest = larger(largest, costs_.node(node).least);
    }
    const bool replicated = costs_.schedule().replicated;
    const Seconds spread = sum * (static_cast<double>(costs_.microbatches()) / costs_.devices());
    return larger(spread, largest * costs_.share(replicated ? costs_.devices() : 1)) * (1 - kEqual);
  }

  /// The largest time found, from `low` to `high`, that every space refutes.
  Seconds bisect(Seconds low, Seconds high, double share) {
    share_ = share;
    if (!is_whole_) return low;
    while (low > Seconds(0) && low * (1 + kBoundPrecision) < high) {
      const Seconds middle(high.value / low.value > 4 ? std::sqrt(low.value * high.value)
                                                      : (low.value + high.value) / 2);
      bool all = true;
      for (const auto& space : spaces_) {
        const std::optional<bool> refuted = space->refutes(middle);
        if (!refuted) return low;
        all = all && *refuted;
        if (!all) break;
      }
      (all ? low : high) = middle;
    }
    return low;
  }

  /// A bound for all plans, by TripBound; the plans that it suggests are where the local search begins.
  Seconds follow_trips(Seconds low) {
    if (constraints_.chunks.value_or(1) != 1 || low <= Seconds(0)) return low;
    trips_ = TripBound::of(costs_, limit_, kMostTripSets);
    if (!trips_) return low;
    share_ = kTripShare;
    const Seconds done = least_trip(low, costs_.devices(), kBoundPrecision);
    suggested_ = suggested(done, costs_.devices());
    return is_bound_by_trips() ? done : low;
  }

  /// Several stages per device are not among the plans of TripBound and PathBound.
  [[nodiscard]] bool is_one_stage_per_device() const {
    return constraints_.chunks.value_or(1) == 1 && (!costs_.schedule().chunked || constraints_.chunks);
  }
  [[nodiscard]] bool is_bound_by_trips() const { return trips_ && is_one_stage_per_device(); }

  /// A bound for all plans, by PathBound.
  Seconds follow_path(Seconds low, double share) {
    if (!is_one_stage_per_device() || low <= Seconds(0)) return low;
    share_ = share;
    const auto stop = [this] { return clock_.is_past(share_); };
    for (const int cuts : {kFewCuts, kMostCuts}) {
      if (cuts == kFewCuts && costs_.dag().nodes <= kMostCuts) continue;
      const std::unique_ptr<PathBound> path = PathBound::of(costs_, limit_, cuts);
      if (!path) break;
      low = least_time(low, best_.value_or(kForever), kBoundPrecision, kCautious,
                       [&](Seconds time) { return path->refutes(time, costs_.devices(), stop); });
    }
    return low;
  }

  /// The largest time found that TripBound refutes for so many devices.
  Seconds least_trip(Seconds low, int devices, double precision) {
    const auto stop = [this] { return clock_.is_past(share_); };
    return least_time(low, kForever, precision, 0.5,
                      [&](Seconds time) { return trips_->refutes(time, devices, stop); });
  }

  /// The largest time found from `low` to `high` that `refutes` says is too short; it says nothing if time was up.
  /// `part`: how far from the low end of what is left it is asked.
  template <class Refutes>
  Seconds least_time(Seconds low, Seconds high, double precision, double part, Refutes&& refutes) {
    while (low * (1 + precision) < high) {
      const Seconds middle(high >= kForever             ? 2 * low.value
                           : high.value / low.value > 4 ? std::sqrt(low.value * high.value)
                                                        : low.value + part * (high.value - low.value));
      const std::optional<bool> refuted = refutes(middle);
      if (!refuted || middle > kForever / 4) break;
      (*refuted ? low : high) = middle;
    }
    return low;
  }

  [[nodiscard]] bool is_wanted(const Split& split) const {
    return constraints_.replicas.empty() &&
           (!constraints_.stages || to_int(split.replicas.size()) == *constraints_.stages);
  }

  /// Plans that TripBound allows a little more time than `least`.
  std::vector<Split> suggested(Seconds least, int devices) {
    const auto stop = [this] { return clock_.is_past(share_); };
    std::vector<Split> out;
    for (const double beyond : {kBoundPrecision, 0.02, 0.05, 0.1, 0.2, 0.4}) {
      const std::optional<bool> refuted = trips_->refutes(least * (1 + beyond), devices, stop);
      if (!refuted) break;
      if (*refuted) continue;
      for (Split& split : trips_->splits()) {
        if (is_wanted(split) && std::ranges::find(out, split) == out.end()) out.push_back(std::move(split));
      }
    }
    return out;
  }

  /// The local search: over some of the devices, ever more of them, and over all.
  void improve(Seconds low) {
    std::vector<int> counts;
    for (int devices = costs_.devices(); devices >= 1 && counts.size() < kCounts; devices /= 2)
      counts.insert(counts.begin(), devices);
    const double each = (kPolishShare - kTripShare) / static_cast<double>(counts.size());
    share_ = kTripShare;
    for (const int devices : counts) {
      const bool all = devices == costs_.devices();
      share_ = all ? kPolishShare - each / 2 : share_ + each / 2;
      if (!all && !trips_) continue;
      std::vector<Split> starts = suggested_;
      const Seconds least = all ? low : least_trip(low, devices, kCoarse);
      if (!all) starts = suggested(least, devices);
      if (all) add_drafts(starts);
      improve(starts, devices, each / 4);
      share_ += each / 2;
      if (!all && constraints_.replicas.empty()) (void)enumerate_trips(least, devices);
    }
    shake();
  }

  /// The candidates of `auto` with the smallest bounds, and the best of each number of stages.
  void add_drafts(std::vector<Split>& starts) {
    std::ranges::stable_sort(splits_, {}, [](const auto& entry) { return entry.first; });
    std::set<std::size_t> stages;
    std::vector<const Split*> first;
    std::vector<const Split*> others;
    for (const auto& [bound, split] : splits_) {
      (stages.insert(split.replicas.size()).second ? first : others).push_back(&split);
    }
    first.insert(first.end(), others.begin(), others.end());
    for (std::size_t i = 0; i < std::min(first.size(), kImproved); ++i) starts.push_back(*first[i]);
  }

  [[nodiscard]] Movable movable(int devices) const {
    Movable out;
    out.stages = !constraints_.stages && constraints_.replicas.empty();
    out.replicas = constraints_.replicas.empty();
    out.devices = devices;
    out.limit = limit_;
    return out;
  }

  /// By their bounds, then the best of them by their predictions: the bound may see little of what makes a plan slow.
  /// Until share_ of the time, then for `more`.
  void improve(const std::vector<Split>& starts, int devices, double more) {
    std::vector<std::pair<Seconds, Split>> found;
    const auto add = [&](const Split& split) {
      const auto least = costs_.lower_bound(split);
      if (!least) return;
      const std::optional<Seconds> step = step_of(split);
      if (step) found.emplace_back(*step, split);
    };
    const auto tired = [&] { return clock_.is_past(share_); };
    for (const Split& split : starts) {
      if (tired()) break;
      add(split);
      add(improved(costs_, split, movable(devices), bound_of_split(costs_), tired));
    }
    std::ranges::stable_sort(found, {}, [](const auto& entry) { return entry.first; });
    const auto known = std::ranges::unique(found);
    found.erase(known.begin(), known.end());
    if (found.size() > kPolished) found.resize(kPolished);
    if (devices == costs_.devices()) {  // what was best on fewer, too
      for (const auto& entry : steps_) found.push_back(entry);
    }
    for (const auto& [time, split] : found) polish(split, devices, share_ + more);
  }

  /// Improves a split by predictions, until that share of the time.
  std::optional<Seconds> polish(const Split& split, int devices, double share) {
    const SplitValue step = [this](const Split& other, Seconds than) -> std::optional<Seconds> {
      const auto least = costs_.lower_bound(other);
      if (!least || *least >= than) return std::nullopt;
      return step_of(other);
    };
    const auto stop = [&] { return clock_.is_past(share); };
    return step_of(improved(costs_, split, movable(devices), step, stop));
  }

  /// Polishes the best split again after some random moves.
  void shake() {
    std::mt19937 random(1);
    for (int round = 0; round < kShakes && !steps_.empty() && !clock_.is_past(kShakeShare); ++round) {
      const auto& from = steps_[random() % std::min<std::size_t>(steps_.size(), 2)].second;
      polish(shaken(costs_, from, movable(costs_.devices()), random), costs_.devices(), kShakeShare);
    }
  }

  /// Predicts what a bound does not exclude, by rising bounds from `low`. Returns the bound up to which nothing was
  /// left out.
  Seconds enumerate(Seconds low) {
    Seconds done = is_whole_ || is_bound_by_trips() ? low : Seconds(0);
    if (is_bound_by_trips() && constraints_.replicas.empty()) {
      const bool all = trips_->is_whole();
      share_ = all ? last_share() : kTripsEnumerated;
      const Seconds found = enumerate_trips(low, costs_.devices());
      if (all) return found;
    }
    share_ = last_share();
    return larger(done, enumerate(low, done, is_whole_, [&](Seconds time) {
                    for (const auto& space : spaces_) {
                      const std::optional<bool> refuted = space->refutes(time);
                      if (!refuted) return false;
                      if (*refuted) continue;
                      if (!predict_up_to(time, [&](const auto& visit) { return space->each(time, visit); }))
                        return false;
                    }
                    return true;
                  }));
  }

  /// enumerate() by TripBound over at most so many devices.
  Seconds enumerate_trips(Seconds low, int devices) {
    const auto stop = [this] { return clock_.is_past(share_); };
    return enumerate(low, low, trips_->is_whole(), [&](Seconds time) {
      const std::optional<bool> refuted = trips_->refutes(time, devices, stop);
      if (!refuted || *refuted) return refuted.has_value();
      return predict_up_to(time, [&](const auto& visit) { return trips_->each(time, visit, stop); });
    });
  }

  /// Calls `all_up_to` with rising times; it says false if time was up. `done` is known beforehand, and becomes more
  /// where `is_complete`.
  template <class AllUpTo>
  Seconds enumerate(Seconds low, Seconds done, bool is_complete, AllUpTo&& all_up_to) {
    double beyond = kBoundPrecision;
    while (true) {
      const bool is_last = beyond > kMostBeyond || low <= Seconds(0);
      const Seconds time = std::min(best_.value_or(kForever), is_last ? kForever : low * (1 + beyond));
      if (!all_up_to(time)) return done;
      if (is_complete) done = larger(done, best_ ? std::min(*best_, time) : time);
      if (time >= best_.value_or(kForever)) return done;
      beyond *= 2;
    }
  }

  /// False if time is up.
  template <class Each>
  bool predict_up_to(Seconds time, Each&& each) {
    std::vector<std::pair<Seconds, Split>> waiting;
    const auto empty = [&] {
      std::ranges::stable_sort(waiting, {}, [](const auto& entry) { return entry.first; });
      for (const auto& [bound, split] : waiting) {
        if (clock_.is_past(share_)) return false;
        if (!is_excluded(bound)) step_of(split);
      }
      waiting.clear();
      return true;
    };
    const bool finished = each([&](const Split& split) {
      if (!is_wanted(split) && constraints_.replicas.empty()) return best_ ? std::min(*best_, time) : time;
      const auto bound = costs_.lower_bound(split);
      const Seconds now = best_ ? std::min(*best_, time) : time;
      if (!bound || *bound > time * (1 + kEqual) || is_excluded(*bound)) return now;
      if (limit_ && costs_.least_memory(split) > *limit_) return now;
      waiting.emplace_back(*bound, split);
      if (waiting.size() >= kMostWaiting) empty();
      return best_ ? std::min(*best_, time) : time;
    });
    return empty() && finished;
  }

  /// Of the time, when the search gives way to placements.
  [[nodiscard]] double last_share() const { return is_placed() ? kSearchShare : 1; }
  [[nodiscard]] bool is_placed() const { return topology_.levels.size() > 1 && constraints_.plan.listed.empty(); }

  /// Tries other devices for the best plans where links differ, until that share of the time.
  void place(double share) {
    if (!is_placed()) return;
    sort();
    std::vector<std::pair<Candidate, std::string>> tries;
    for (const RankedPlan& ranked : ranking_.plans) {
      if (!ranked.fits || tries.size() >= kPlaced) break;
      if (ranked.origin.ends_with(kPlacedOrigin)) continue;
      Candidate candidate;
      candidate.partition.stage_of_layer.assign(graph_.layers.size(), -1);
      for (std::size_t s = 0; s < ranked.plan.stages.size(); ++s) {
        for (const std::string& id : ranked.plan.stages[s].layers)
          candidate.partition.stage_of_layer[to_index(layer_index(graph_, id))] = to_int(s);
        candidate.partition.replicas.push_back(to_int(ranked.plan.stages[s].devices.size()));
      }
      candidate.chunks = ranked.plan.chunks;
      if (placed_.contains({candidate.partition.stage_of_layer, candidate.partition.replicas})) continue;
      candidate.steady_state = ranked.plan.steady_state;
      tries.emplace_back(std::move(candidate), ranked.origin);
    }
    for (auto& [candidate, origin] : tries) {
      const auto key = std::pair(candidate.partition.stage_of_layer, candidate.partition.replicas);
      if (!placed_.insert(key).second) continue;
      for (auto& devices : placements(topology_, candidate.partition.replicas, candidate.chunks)) {
        if (clock_.is_past(share)) {
          placed_.erase(key);
          return;
        }
        candidate.devices = std::move(devices);
        predict(origin + kPlacedOrigin, candidate);
      }
    }
  }

  void sort() {
    std::ranges::stable_sort(ranking_.plans, [](const RankedPlan& a, const RankedPlan& b) {
      if (a.fits != b.fits) return a.fits;
      return a.prediction.iteration < b.prediction.iteration;
    });
    if (ranking_.plans.empty()) return;
    const Seconds best = ranking_.plans.front().prediction.iteration * (1 + kEqual);
    const auto end = std::ranges::find_if(ranking_.plans, [&](const RankedPlan& ranked) {
      return ranked.fits != ranking_.plans.front().fits || ranked.prediction.iteration > best;
    });
    std::stable_sort(ranking_.plans.begin(), end, [](const RankedPlan& a, const RankedPlan& b) {
      return std::pair(devices_of(a), a.plan.stages.size()) < std::pair(devices_of(b), b.plan.stages.size());
    });
  }

  StrategyResult result(Seconds low) {
    sort();
    if (ranking_.plans.empty() || !ranking_.plans.front().fits) {
      StrategyResult other = rank_plans(graph_, topology_, model_, constraints_);
      if (auto* infeasible = std::get_if<Infeasible>(&other)) return std::move(*infeasible);
      ranking_ = std::move(std::get<Ranking>(other));
    }
    RankedPlan& first = ranking_.plans.front();
    const Seconds best = first.prediction.iteration;
    ranking_.lower_bound = low >= best * (1 - kEqual) ? best : low;
    first.plan.lower_bound = ranking_.lower_bound;
    return std::move(ranking_);
  }

  const Graph& graph_;
  const Topology& topology_;
  const CostModel& model_;
  const Constraints& constraints_;
  std::optional<Bytes> limit_;
  PipelineCosts costs_;
  Clock clock_;
  double share_ = 1;  ///< of the time limit, for what is under way
  std::optional<Lattice> lattice_;
  bool is_whole_ = true;  ///< the spaces hold every split
  std::vector<std::unique_ptr<ChainSearch>> spaces_;
  std::map<Key, std::optional<Seconds>> known_;    ///< splits in order that were predicted, or have too high a bound
  std::vector<std::pair<Seconds, Split>> steps_;   ///< the best of them
  std::vector<std::pair<Seconds, Split>> splits_;  ///< of `auto`, with their bounds
  std::set<std::pair<std::vector<int>, std::vector<int>>> placed_;  ///< stages of layers and replicas
  std::unique_ptr<TripBound> trips_;
  std::vector<Split> suggested_;  ///< by it
  Ranking ranking_;
  std::optional<Seconds> best_;
};

void check(const Constraints& constraints) {
  if (!constraints.replicas.empty() && constraints.stages && to_int(constraints.replicas.size()) != *constraints.stages)
    throw std::invalid_argument("strategy optimal: found " + std::to_string(constraints.replicas.size()) +
                                " replicas for " + std::to_string(*constraints.stages) + " stages");
}

/// The predicted step of a plan that the strategy considers: its devices need not be in order.
std::optional<double> objective(const Graph& graph, const Topology& topology, const CostModel& costs,
                                const Constraints& constraints, const Plan& plan) {
  if (constraints.stages && to_int(plan.stages.size()) != *constraints.stages) return std::nullopt;
  for (std::size_t s = 0; s < plan.stages.size() && !constraints.replicas.empty(); ++s) {
    if (plan.stages.size() != constraints.replicas.size() ||
        to_int(plan.stages[s].devices.size()) != constraints.replicas[s])
      return std::nullopt;
  }
  const auto limit = memory_limit(topology, constraints);
  if (limit && costs.memory(graph, topology, plan).peak > *limit) return std::nullopt;
  const auto predicted = costs.predict(graph, topology, plan);
  if (std::holds_alternative<Infeasible>(predicted)) return std::nullopt;
  return std::get<Prediction>(predicted).iteration.value;
}

}  // namespace

std::string gap_text(Seconds iteration, Seconds lower_bound) {
  if (lower_bound >= iteration) return "the best possible";
  if (lower_bound <= Seconds(0)) return "without a lower bound";
  const double percent = (iteration / lower_bound - 1) * 100;
  const std::string text = percent < 0.1  ? "0.1"
                           : percent < 10 ? fmt::format("{:.2g}", percent)
                                          : fmt::format("{:.0f}", percent);
  return fmt::format("at most {} % above the best possible", text);
}

Strategy optimal_strategy() {
  Strategy out;
  out.name = "optimal";
  out.help =
      "the shortest predicted step of all contiguous stages with any replicas, on devices in order; says how far from "
      "the best it can be at most";
  out.plan = [](const Graph& graph, const Topology& topology, const CostModel& costs,
                const Constraints& constraints) -> StrategyResult {
    check(constraints);
    return Search(graph, topology, costs, constraints).run();
  };
  out.objective = objective;
  out.exact = true;
  out.compares = true;
  out.options_title = "optimal";
  out.options = {{{kTimeLimit},
                  OptionKind::Positive,
                  "seconds to search; then the best plan so far, and how far from the best it can be (default: 3)"}};
  return out;
}

}  // namespace stagecraft::partitioner
