#include "partitioner/strategies/optimal.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/text/units_text.h"
#include "partitioner/bounds/least_step.h"
#include "partitioner/bounds/path_bound.h"
#include "partitioner/bounds/segment_bound.h"
#include "partitioner/candidate.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/search/enumeration.h"
#include "partitioner/search/equal_shares.h"
#include "partitioner/search/placement.h"
#include "partitioner/search/predicted_plans.h"
#include "partitioner/search/search_context.h"
#include "partitioner/search/search_tuning.h"
#include "partitioner/search/split_polish.h"
#include "partitioner/strategies/auto.h"
#include "partitioner/strategies/equal_drafts.h"
#include "partitioner/strategies/smallest_plan.h"

namespace stagecraft::partitioner {
namespace {

/// A lower bound of the step from here on says that no plan is possible: least_time ends its search near kForever.
constexpr Seconds kNeverFits = kForever / 16;
/// The parts that a time limit can cut off, for users.
constexpr const char* kCandidatePart = "candidates";
constexpr const char* kBoundPart = "lower bound";
constexpr const char* kEnumerationPart = "enumeration";
constexpr const char* kPlacementPart = "placements";

bool is_in_order(const Candidate& candidate) {
  int next = 0;
  for (const std::vector<int>& devices : candidate.devices) {
    for (const int device : devices) {
      if (device != next++) return false;
    }
  }
  return candidate.warmups.empty();
}

/// The memory of the smallest_plan after a change that might help.
std::optional<Bytes> least_need_of_moves(const Graph& graph, const Topology& topology, const CostModel& costs,
                                         const Constraints& constraints) {
  const auto found = smallest_plan(graph, topology, costs, constraints, SearchTuning::kRemedyTime);
  return found ? std::optional(found->need) : std::nullopt;
}

/// The search for one request: the plans that were predicted, and a lower bound of all others.
class Search {
 public:
  Search(const Graph& graph, const Topology& topology, const CostModel& model, const Constraints& constraints,
         std::optional<Seconds> upper_bound = {})
      : graph_(graph),
        topology_(topology),
        model_(model),
        constraints_(constraints),
        upper_bound_(upper_bound),
        costs_(graph, topology, constraints.plan),
        time_(time_limit(constraints.options)),
        told_(model.progress, kOptimalStrategy),
        plans_(kOptimalStrategy, graph, topology, model, constraints, costs_),
        placed_(graph, topology, constraints, plans_),
        context_{costs_, constraints, memory_limit(topology, constraints), time_, plans_} {
    if (upper_bound) plans_.exclude_from(*upper_bound);
    told_.ends_after(time_.end());
  }

  StrategyResult run() {
    if (costs_.dag().nodes == 0) return Infeasible{"the graph has no layers besides its inputs"};
    draft_time_ = SearchTuning::kDraftTime;
    return result(search());
  }

  /// The best candidate of `auto` alone, of those that are there until `stop`.
  ShorterPlan draft(const std::function<bool()>& stop) {
    if (costs_.dag().nodes == 0 || plans_.is_excluded(least_computation(costs_))) return shorter(kForever);
    if (is_a_layer_too_large(graph_, topology_, constraints_)) return shorter(kForever);
    try_drafts(drafts(graph_, topology_, model_, constraints_, stop).plans, stop);
    return shorter(least_computation(costs_));
  }

  ShorterPlan run_below() {
    const Seconds quick = upper_bound_ ? quick_bound(0) : Seconds(0);
    return shorter(upper_bound_ && quick >= *upper_bound_ ? kForever : std::max(quick, search()));
  }

  /// A bound of all plans by few cuts, at most upper_bound_. If not all plans are as long as upper_bound_, the bound is
  /// found within `precision`; with 0, it is the one known at once.
  [[nodiscard]] Seconds quick_bound(double precision) {
    if (costs_.dag().nodes == 0 || plans_.is_excluded(least_computation(costs_))) return *upper_bound_;
    const Seconds low = least_computation(costs_);
    if (low <= Seconds(0)) return low;
    time_.allow_some(SearchTuning::kPathShare);
    if (!is_one_stage_per_device()) return follow_segments(low, *upper_bound_);
    PathBound* const path = path_bound(SearchTuning::kFewPathCuts);
    if (path == nullptr) return low;
    const auto refutes = [&](Seconds time) { return path->refutes(time, costs_.devices(), time_.stop()); };
    const std::optional<bool> all = refutes(*upper_bound_ * (1 - kEqual));
    if (all.value_or(false)) return *upper_bound_;
    return all && precision > 0 ? least_time(low, *upper_bound_, precision, 0.5, refutes) : low;
  }

 private:
  /// Predicts the plans that may be the best, and returns a lower bound of all plans.
  Seconds search() {
    Drafts found = drafts(graph_, topology_, model_, constraints_);
    skipped_ = std::move(found.skipped);
    try_drafts(found.plans);
    time_.begin_rounds();
    told_.ends_after(time_.end());
    ChainSpaces spaces(context_);
    Seconds low = proved(least_computation(costs_));
    do low = search_round(spaces, low);
    while (!plans_.is_excluded(low) && time_.next_round());
    return low >= kNeverFits ? kForever : low;
  }

  /// One round of all parts. `low` is a lower bound of all plans; returns the same or a larger one.
  Seconds search_round(ChainSpaces& spaces, Seconds low) {
    if (!trips_) SplitPolish(context_, nullptr, {}).improve_best(SearchTuning::kFirstPolishShare);
    low = proved(follow_path(low, SearchTuning::kPathShare));
    if (time_.round() == 0) any_order_ = low;
    low = proved(follow_trips(low));
    if (!trips_ && suggests_splits()) low = proved(follow_path(low, SearchTuning::kLongPathShare));
    time_.allow_some(SearchTuning::kPlaceShare);
    placed_.try_placements(time_.stop());
    if (spaces.is_empty() && spaces.is_whole()) return proved(kForever);  // no split can run
    if (!spaces.is_empty()) {
      const double more = trips_ ? 0 : SearchTuning::kLongerShare;
      SplitPolish(context_, trips_.get(),
                  {SearchTuning::kTripShare, SearchTuning::kPolishShare + more, SearchTuning::kShakeShare + more})
          .run(low, suggested_, drafts_);
      if (plans_.best() && !is_bound_by_trips()) {
        low = proved(follow_path(low, SearchTuning::kBoundShare));
        time_.allow(SearchTuning::kBoundShare, kBoundPart);
        low = proved(spaces.least(low, *plans_.best()));
      }
      low = proved(std::max(low, enumerate_all(spaces, low)));
    }
    time_.allow(1, kPlacementPart);
    placed_.try_placements(time_.stop());
    if (!plans_.is_excluded(any_order_)) placed_.improve(context_, suggested_, time_.stop());
    if (is_path_cut_off_) time_.cut_off(kBoundPart);
    return low;
  }

  /// Reports a lower bound of all plans as progress, and returns the bound.
  Seconds proved(Seconds low) const {
    told_.proved(low);
    return low;
  }

  /// Predicts the candidates of `auto`, those with the smallest bounds first.
  void try_drafts(const std::vector<Drafted>& plans, const std::function<bool()>& stop = [] { return false; }) {
    std::vector<std::pair<Seconds, const Drafted*>> order;
    for (const Drafted& draft : plans) {
      Seconds bound;
      Split split = costs_.split_of(draft.candidate.partition, draft.candidate.chunks);
      if (is_in_order(draft.candidate)) {
        if (!plans_.make_known(split)) continue;
        bound = costs_.lower_bound(split).value_or(Seconds(0));
        drafts_.emplace_back(bound, std::move(split));
      } else if (draft.candidate.warmups.empty()) {
        bound = costs_.lower_bound(split, draft.candidate.devices).value_or(Seconds(0));
      }
      order.emplace_back(bound, &draft);
    }
    // Of equal bounds, the simplest plan comes first: plans that are no better are then not predicted.
    std::ranges::stable_sort(order, {}, [](const auto& entry) {
      const std::vector<int>& replicas = entry.second->candidate.partition.replicas;
      return std::tuple(entry.first.value, std::accumulate(replicas.begin(), replicas.end(), 0), replicas.size());
    });
    bool is_late = false;
    for (const auto& [bound, draft] : order) {
      if (stop()) return;
      if (plans_.is_excluded(bound)) {
        ++slower_;
        continue;
      }
      const Split split = costs_.split_of(draft->candidate.partition, draft->candidate.chunks);
      const bool in_order = is_in_order(draft->candidate);
      // For a large cluster, one prediction takes seconds.
      is_late = is_late || (plans_.best() && time_.is_past(SearchTuning::kDraftShare) && time_.passed() > draft_time_);
      // The search must never be worse than equal shares. The enumeration may still find the other candidates.
      if (is_late && !draft->origin.starts_with(kEqualShares)) {
        time_.cut_off(kCandidatePart);
        if (in_order) plans_.forget(split);
        continue;
      }
      const std::optional<Seconds> step = plans_.predict(draft->origin, draft->candidate);
      if (in_order) plans_.set_step(split, step);
    }
  }

  /// Whether all plans have one stage per device, as TripBound and PathBound assume.
  [[nodiscard]] bool is_one_stage_per_device() const { return chunk_counts(constraints_) == std::vector{1}; }
  [[nodiscard]] bool is_bound_by_trips() const { return trips_ && is_one_stage_per_device(); }

  /// A bound of all plans, at least `low`, by TripBound. The local search begins with the plans that TripBound
  /// suggests.
  Seconds follow_trips(Seconds low) {
    if (low <= Seconds(0)) return low;
    if (!trips_) trips_ = TripSearch::of(context_);
    if (!trips_) return low;
    time_.allow(SearchTuning::kTripShare, kBoundPart);
    const Seconds done = trips_->least(low, costs_.devices(), SearchTuning::kBoundPrecision);
    suggested_ = trips_->suggested_that_fit(done, costs_.devices(), false);
    if (time_.round() == 0 && is_bound_by_trips()) any_order_ = done;
    if (!is_bound_by_trips()) return low;
    low = done;
    if (trips_->knows_order()) {
      low = trips_->least_in_order(low);
      for (Split& split : trips_->suggested_that_fit(low, costs_.devices(), true)) {
        if (std::ranges::find(suggested_, split) == suggested_.end()) suggested_.push_back(std::move(split));
      }
    }
    return costs_.levels() > 1 ? follow_segments(low, plans_.best().value_or(kForever)) : low;
  }

  /// Returns `refuted`, the answer of a bound by a path, and notes whether that bound was cut off.
  std::optional<bool> noted(std::optional<bool> refuted) {
    is_path_cut_off_ = !refuted;
    return refuted;
  }

  /// The least that the busiest device computes in a step if stages of equal replicas fit in memory; 0 if unknown.
  [[nodiscard]] Seconds least_where_stages_fit() {
    const std::optional<Bytes> limit = context_.countable();
    if (!limit || !costs_.schedule().equal_replicas || !costs_.waits()) return Seconds(0);
    const int stages =
        constraints_.replicas.empty() ? constraints_.stages.value_or(0) : to_int(constraints_.replicas.size());
    const EqualShares shares(costs_);
    Seconds least = kForever;
    for (const int chunks : chunk_counts(constraints_)) {
      for (int positions = std::min(costs_.devices(), costs_.dag().nodes / chunks); positions > 0; --positions) {
        if (stages > 0 && positions * chunks != stages) continue;
        for (int replicas = std::min(costs_.devices() / positions, costs_.microbatches()); replicas > 0; --replicas) {
          const std::vector<int> all(to_index(positions * chunks), replicas);
          if (!constraints_.replicas.empty() && constraints_.replicas != all) continue;
          if (!costs_.can_run({{}, all, chunks})) continue;
          const auto busiest = shares.least_busiest(positions, replicas, chunks, *limit, time_.stop());
          if (!busiest) continue;
          least = std::min(least, *busiest * costs_.share(replicas) * (1 - kEqual));
          if (least <= Seconds(0)) return least;
        }
      }
    }
    return least;
  }

  /// A bound of all plans from `low` to `high`, by SegmentBound.
  [[nodiscard]] Seconds follow_segments(Seconds low, Seconds high) {
    if (fitting_ <= Seconds(0)) fitting_ = least_where_stages_fit();
    low = std::max(low, std::min(high, fitting_));
    const std::optional<SegmentBound> segments = SegmentBound::of(costs_);
    if (!segments) return low;
    const auto refutes = [&](Seconds time) { return noted(segments->refutes(time, time_.stop())); };
    return refutes(high * (1 - kEqual)).value_or(false)
               ? high
               : least_time(low, high, SearchTuning::kSegmentPrecision, 0.5, refutes);
  }

  /// A bound of all plans, at least `low`, by PathBound or, with several stages per device, by SegmentBound.
  Seconds follow_path(Seconds low, double share) {
    if (low <= Seconds(0)) return low;
    time_.allow_some(share);
    is_path_cut_off_ = false;
    if (!is_one_stage_per_device()) return follow_segments(low, plans_.best().value_or(kForever));
    for (const int cuts : {SearchTuning::kFewPathCuts, SearchTuning::kMostPathCuts}) {
      if (cuts == SearchTuning::kFewPathCuts && costs_.dag().nodes <= SearchTuning::kMostPathCuts) continue;
      PathBound* const path = path_bound(cuts);
      if (path == nullptr) break;
      low = least_time(low, plans_.best().value_or(kForever), SearchTuning::kBoundPrecision, SearchTuning::kPathProbe,
                       [&](Seconds time) { return noted(path->refutes(time, costs_.devices(), time_.stop())); });
      try_splits(path->splits(SearchTuning::kMostFromPath));
    }
    return low;
  }

  /// The PathBound by about so many cuts, which remembers earlier questions; null if the graph has none.
  [[nodiscard]] PathBound* path_bound(int cuts) {
    std::unique_ptr<PathBound>& path = paths_[cuts];
    if (!path) path = PathBound::of(costs_, context_.countable(), cuts);
    return path.get();
  }
  [[nodiscard]] bool suggests_splits() const {
    return std::ranges::any_of(paths_, [](const auto& path) { return path.second && !path.second->splits(1).empty(); });
  }

  /// Predicts the splits whose bounds are below the best step.
  void try_splits(const std::vector<Split>& splits) {
    for (std::size_t i = 0; i < splits.size(); ++i) {
      if (i < SearchTuning::kLeastFromPath ? time_.is_past(1) : time_.is_up()) return;
      const Split& split = splits[i];
      if (!context_.is_wanted(split)) continue;
      const std::optional<Seconds> bound = costs_.lower_bound(split);
      if (bound && !plans_.is_excluded(*bound)) plans_.step_of(split);
    }
  }

  /// Predicts all splits that no bound excludes, by bounds that rise from `low`. Returns the bound up to which no split
  /// was left out.
  Seconds enumerate_all(ChainSpaces& spaces, Seconds low) {
    const double share = placed_.is_useful() ? SearchTuning::kSearchShare : 1;  // the rest is for placements
    if (is_bound_by_trips() && constraints_.replicas.empty()) {
      const bool all = trips_->is_whole();
      time_.allow(all ? share : SearchTuning::kTripsEnumeratedShare, kEnumerationPart);
      const Seconds found = trips_->enumerate_all(low, costs_.devices());
      if (all) return found;
    }
    time_.allow(share, kEnumerationPart);
    return spaces.enumerate_all(low, spaces.is_whole() || is_bound_by_trips() ? low : Seconds(0));
  }

  StrategyResult result(Seconds low) {
    Ranking out{plans_.take(), std::move(skipped_), slower_};
    bool is_all = !out.plans.empty() && out.plans.front().fits;
    if (!is_all && context_.limit) {
      if (std::optional<RankedPlan> small = smallest()) {
        if (!small->fits) {
          const bool is_proven = low >= kNeverFits || is_a_layer_too_large(graph_, topology_, constraints_);
          const std::string unproven =
              fmt::format("found no plan that fits in memory in {}, nor a proof that there is none",
                          format_seconds(time_limit(constraints_.options)));
          return no_plan_fits(is_proven ? kNoPlanFits : unproven, *small, graph_, topology_, model_, constraints_,
                              least_need_of_moves);
        }
        out.plans = {std::move(*small)};
        is_all = true;
      }
    }
    if (!is_all) {
      StrategyResult other = rank_plans(graph_, topology_, model_, constraints_);
      if (auto* infeasible = std::get_if<Infeasible>(&other)) return std::move(*infeasible);
      out = std::move(std::get<Ranking>(other));
    }
    RankedPlan& first = out.plans.front();
    out.lower_bound = first.plan.lower_bound = up_to(low, first.prediction.iteration);
    out.cut_off.assign(time_.cut().begin(), time_.cut().end());
    if (is_all) out.others_lower_bound = std::min(low, plans_.least_dropped());
    return out;
  }

  /// The plan that needs the least memory, if the search found none that fits. Absent without candidates.
  [[nodiscard]] std::optional<RankedPlan> smallest() const {
    const auto small = smallest_plan(graph_, topology_, model_, constraints_, SearchTuning::kSmallestTime);
    if (!small) return std::nullopt;
    return predicted_plan(small->origin, graph_, topology_, small->candidate, model_, constraints_);
  }

  /// The best plan, if it is shorter than upper_bound_.
  ShorterPlan shorter(Seconds low) {
    std::vector<RankedPlan> plans = plans_.take();
    const bool found = !plans.empty() && plans.front().fits &&
                       (!upper_bound_ || plans.front().prediction.iteration < *upper_bound_ * (1 - kEqual));
    ShorterPlan out{{}, up_to(low, upper_bound_.value_or(kForever)), !time_.was_cut_off()};
    if (!found) return out;
    out.plan = std::move(plans.front());
    out.lower_bound = up_to(low, out.plan->prediction.iteration);
    out.plan->plan.lower_bound = out.lower_bound;
    return out;
  }

  /// The smaller of the bound `low` and the step `known`: a larger bound says nothing more.
  static Seconds up_to(Seconds low, Seconds known) { return low >= known * (1 - kEqual) ? known : low; }

  const Graph& graph_;
  const Topology& topology_;
  const CostModel& model_;
  const Constraints& constraints_;
  std::optional<Seconds> upper_bound_;  ///< only plans with a shorter step are of interest
  PipelineCosts costs_;
  SearchTime time_;
  ToldSearch told_;
  Seconds draft_time_;  ///< the least time for predictions of the candidates of `auto`
  PredictedPlans plans_;
  PlacedPlans placed_;
  SearchContext context_;
  std::vector<BoundedSplit> drafts_;  ///< splits of `auto`
  std::vector<Skipped> skipped_;
  int slower_ = 0;                                   ///< Ranking::slower
  bool is_path_cut_off_ = false;                     ///< the latest bound by a path was cut off
  std::map<int, std::unique_ptr<PathBound>> paths_;  ///< by number of cuts
  std::unique_ptr<TripSearch> trips_;
  std::vector<Split> suggested_;  ///< by trips_
  Seconds any_order_;             ///< a lower bound of all plans on devices in any order
  Seconds fitting_;               ///< least_where_stages_fit; 0 before it is known
};

void check(const Constraints& constraints) {
  if (!constraints.replicas.empty() && constraints.stages && to_int(constraints.replicas.size()) != *constraints.stages)
    throw std::invalid_argument(fmt::format("strategy optimal: replicas are given for {}, but the plan is to have {}",
                                            count_text(to_int(constraints.replicas.size()), "stage"),
                                            *constraints.stages));
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
  const BoundPlan bound(plan);
  const auto limit = memory_limit(topology, constraints);
  if (limit && costs.memory(graph, topology, bound).peak > *limit) return std::nullopt;
  const auto predicted = costs.predict(graph, topology, bound);
  if (std::holds_alternative<Infeasible>(predicted)) return std::nullopt;
  return std::get<Prediction>(predicted).iteration.value;
}

}  // namespace

Seconds quick_bound(const Graph& graph, const Topology& topology, const CostModel& costs,
                    const Constraints& constraints, Seconds upper_bound) {
  return Search(graph, topology, costs, constraints, upper_bound).quick_bound(SearchTuning::kQuickPrecision);
}

ShorterPlan drafted_plan(const Graph& graph, const Topology& topology, const CostModel& costs,
                         const Constraints& constraints, std::optional<Seconds> upper_bound,
                         const std::function<bool()>& stop) {
  check(constraints);
  return Search(graph, topology, costs, constraints, upper_bound).draft(stop);
}

ShorterPlan shorter_plan(const Graph& graph, const Topology& topology, const CostModel& costs,
                         const Constraints& constraints, std::optional<Seconds> upper_bound) {
  check(constraints);
  return Search(graph, topology, costs, constraints, upper_bound).run_below();
}

Strategy optimal_strategy() {
  Strategy out;
  out.name = kOptimalStrategy;
  out.help =
      "the shortest predicted step of all contiguous stages with any replicas, on devices in order; reports a bound on "
      "its gap to the best plan";
  out.plan = [](const Graph& graph, const Topology& topology, const CostModel& costs,
                const Constraints& constraints) -> StrategyResult {
    check(constraints);
    return Search(graph, topology, costs, constraints).run();
  };
  out.objective = objective;
  out.least_need = least_need_of_moves;
  out.exact = true;
  out.compares = true;
  out.takes_hand = true;
  out.options_title = kOptimalStrategy;
  out.options = {
      {{kTimeLimit},
       OptionKind::Positive,
       fmt::format(
           "time limit of the search in seconds; returns the best plan so far and a bound on its gap (default: {:g})",
           kDefaultTimeLimit.value)}};
  return out;
}

}  // namespace stagecraft::partitioner
