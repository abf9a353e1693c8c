#include "partitioner/search/predicted_plans.h"

#include <algorithm>
#include <stdexcept>

#include "costmodel/index.h"
#include "partitioner/candidate.h"
#include "partitioner/search/search_tuning.h"

namespace stagecraft::partitioner {
namespace {

void forget_spans(RankedPlan& ranked) { std::vector<Span>().swap(ranked.prediction.timeline.spans); }

}  // namespace

Candidate candidate_of_split(const Graph& graph, const PipelineCosts& costs, const Constraints& constraints,
                             const Split& split) {
  return given_candidate(graph, costs.partition(split), {}, {}, {}, microbatches_of_a_step(constraints.plan),
                         split.chunks, costs.schedule().placement);
}

std::optional<PlanMemory> memory_of_split(const Graph& graph, const Topology& topology, const CostModel& model,
                                          const PipelineCosts& costs, const Constraints& constraints,
                                          const Split& split) {
  try {
    PlanSettings settings = constraints.plan;
    settings.microbatches = costs.microbatches_that_fill(split);
    const Candidate candidate = candidate_of_split(graph, costs, constraints, split);
    return model.memory(graph, topology, BoundPlan(plan_of_candidate(graph, topology, candidate, settings)));
  } catch (const std::invalid_argument&) { return std::nullopt; }
}

PredictedPlans::PredictedPlans(std::string origin, const Graph& graph, const Topology& topology, const CostModel& model,
                               const Constraints& constraints, const PipelineCosts& costs)
    : origin_(std::move(origin)),
      graph_(graph),
      topology_(topology),
      model_(model),
      constraints_(constraints),
      costs_(costs),
      limit_(memory_limit(topology, constraints)) {}

std::optional<Seconds> PredictedPlans::predict(const std::string& origin, const Candidate& candidate) {
  try {
    const BoundPlan plan(plan_of_candidate(graph_, topology_, candidate, constraints_.plan));
    // Memory is known sooner than the step.
    if (limit_ && model_.memory(graph_, topology_, plan).peak > *limit_) return std::nullopt;
    RankedPlan ranked = predicted_plan(origin, graph_, topology_, plan, candidate.endless, model_, constraints_);
    const std::optional<Seconds> out = ranked.fits ? std::optional(ranked.prediction.iteration) : std::nullopt;
    keep(std::move(ranked));
    return out;
  } catch (const std::invalid_argument&) {  // the schedule cannot run it
  } catch (const std::runtime_error&) {     // its lists deadlock
  }
  return std::nullopt;
}

void PredictedPlans::keep(RankedPlan ranked) {
  const Seconds step = ranked.prediction.iteration;
  if (ranked.fits) {
    if (model_.progress != nullptr && (!best() || step < *best())) model_.progress->found(step);
    shortest_.insert(std::ranges::upper_bound(shortest_, step), step);
    if (to_int(shortest_.size()) > constraints_.wanted) shortest_.pop_back();
  }
  // Only the best one is looked at closely; spans take most of the memory.
  if (!best() || step > *best()) {
    forget_spans(ranked);
  } else {
    std::ranges::for_each(plans_, forget_spans);
  }
  plans_.push_back(std::move(ranked));
  if (plans_.size() < 2 * SearchTuning::kMostKeptPlans) return;
  (void)sorted();
  if (plans_[SearchTuning::kMostKeptPlans].fits)
    least_dropped_ = std::min(least_dropped_, plans_[SearchTuning::kMostKeptPlans].prediction.iteration);
  plans_.resize(SearchTuning::kMostKeptPlans);
}

bool PredictedPlans::make_known(const Split& split) { return known_.emplace(key_of(split), std::nullopt).second; }

bool PredictedPlans::fits(const Split& split) const {
  if (!limit_) return true;
  const std::optional<PlanMemory> memory = memory_of_split(graph_, topology_, model_, costs_, constraints_, split);
  return memory && memory->peak <= *limit_;
}

std::optional<Seconds> PredictedPlans::step_of(const Split& split) {
  const auto [known, fresh] = known_.emplace(key_of(split), std::nullopt);
  if (!fresh) return known->second;
  const std::optional<Seconds> out = predict(origin_, candidate_of_split(graph_, costs_, constraints_, split));
  set_step(split, out);
  return out;
}

void PredictedPlans::set_step(const Split& split, std::optional<Seconds> step) {
  known_[key_of(split)] = step;
  if (!step || (steps_.size() >= SearchTuning::kMostSplits && *step >= steps_.back().first)) return;
  steps_.emplace_back(*step, split);
  std::ranges::stable_sort(steps_, {}, [](const auto& entry) { return entry.first; });
  if (steps_.size() > SearchTuning::kMostSplits) steps_.pop_back();
}

const std::vector<RankedPlan>& PredictedPlans::sorted() {
  std::ranges::stable_sort(plans_, [](const RankedPlan& a, const RankedPlan& b) {
    if (a.fits != b.fits) return a.fits;
    return a.prediction.iteration < b.prediction.iteration;
  });
  if (plans_.empty()) return plans_;
  const Seconds best = plans_.front().prediction.iteration * (1 + kEqual);
  const auto end = std::ranges::find_if(plans_, [&](const RankedPlan& ranked) {
    return ranked.fits != plans_.front().fits || ranked.prediction.iteration > best;
  });
  std::stable_sort(plans_.begin(), end, [](const RankedPlan& a, const RankedPlan& b) {
    return std::pair(devices_of(a.plan), a.plan.stages.size()) < std::pair(devices_of(b.plan), b.plan.stages.size());
  });
  return plans_;
}

std::vector<RankedPlan> PredictedPlans::take() {
  (void)sorted();
  return std::exchange(plans_, {});
}

}  // namespace stagecraft::partitioner
