#include "partitioner/choices/settings_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/text/units_text.h"
#include "partitioner/bounds/least_step.h"
#include "partitioner/candidate.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/search/predicted_plans.h"
#include "partitioner/search/search_time.h"
#include "partitioner/search/search_tuning.h"
#include "partitioner/strategies/auto.h"
#include "partitioner/strategies/equal_drafts.h"
#include "partitioner/strategies/optimal.h"
#include "partitioner/strategies/smallest_plan.h"

namespace stagecraft::partitioner {
namespace {

SettingTrial try_schedule(const std::string& schedule, Constraints constraints,
                          const std::function<StrategyResult(const Constraints&)>& plan) {
  constraints.plan.schedule = schedule;
  SettingTrial out;
  out.settings.plan = constraints.plan;
  try {
    StrategyResult result = plan(constraints);
    if (const auto* infeasible = std::get_if<Infeasible>(&result)) {
      out.reason = infeasible->reason;
    } else {
      out.plan = std::move(std::get<Ranking>(result).plans.front());
    }
  } catch (const std::invalid_argument& e) { out.reason = e.what(); }
  return out;
}

Seconds run_step(const RankedPlan& ranked) { return step_in_run(ranked.plan).value_or(ranked.prediction.iteration); }

/// Whether a run of `a` is faster than one of `b`, or `b` does not fit in memory; of equal ones that with
/// the shorter single step, then the first.
bool is_better(const RankedPlan& a, const RankedPlan& b) {
  if (a.fits != b.fits) return a.fits;
  if (run_step(a) < run_step(b) * (1 - kEqual)) return true;
  return run_step(a) <= run_step(b) * (1 + kEqual) && a.prediction.iteration < b.prediction.iteration * (1 - kEqual);
}

/// Sets `best` among the trials with plans, and the bound: of all plans, unless the best is chosen for its steps in a
/// run although another's single step is shorter: then of those with its settings.
void choose_best(SettingsSearch& search) {
  std::optional<std::size_t> best;
  Seconds shortest = kForever;
  for (std::size_t i = 0; i < search.trials.size(); ++i) {
    const std::optional<RankedPlan>& plan = search.trials[i].plan;
    if (!plan) continue;
    if (plan->fits) shortest = std::min(shortest, plan->prediction.iteration);
    if (!best || is_better(*plan, *search.trials[*best].plan)) best = i;
  }
  search.best = *best;
  const SettingTrial& chosen = search.trials[search.best];
  if (search.lower_bound && chosen.plan->prediction.iteration * (1 - kEqual) > shortest)
    search.lower_bound = std::min(chosen.lower_bound, chosen.plan->prediction.iteration);
}

class SettingsRun {
 public:
  SettingsRun(const SettingSpace& space, const Topology& topology, const CostModel& costs)
      : space_(space),
        topology_(topology),
        costs_(costs),
        limit_(memory_limit(topology, space.constraints)),
        all_(time_limit(space.constraints.options)),
        time_(all_),
        told_(costs.progress, "settings") {
    told_.ends_after(all_);
    for (StepSettings& settings : settings_of(space, topology)) {
      const Seconds least = least_step(space.graphs[settings.graph].graph, topology, settings.plan);
      SettingTrial& trial = out_.trials.emplace_back();
      trial.settings = std::move(settings);
      trial.lower_bound = least;
    }
  }

  SettingsSearch run() {
    draft_all();
    search_request();
    bound_all();
    search_rounds();
    if (best_ >= kForever) throw_no_plan();
    out_.lower_bound = lower_bound();
    choose_best(out_);
    return std::move(out_);
  }

 private:
  [[nodiscard]] const Graph& graph_of(const SettingTrial& trial) const {
    return space_.graphs[trial.settings.graph].graph;
  }
  [[nodiscard]] Constraints constraints_of(const SettingTrial& trial, Seconds time) const {
    Constraints out = space_.constraints;
    out.plan = trial.settings.plan;
    out.options.insert_or_assign(kTimeLimit, time.value);
    return out;
  }
  [[nodiscard]] bool is_open(const SettingTrial& trial) const {
    return !trial.is_exhausted && !is_settled(trial, best_);
  }
  [[nodiscard]] std::optional<Seconds> upper_bound() const {
    return best_ < kForever ? std::optional(best_) : std::nullopt;
  }
  [[nodiscard]] Seconds left() const { return std::max(Seconds(0), all_ - time_.passed()); }

  /// Takes what was found with a trial's settings.
  void take(SettingTrial& trial, ShorterPlan found) {
    raise(trial, found.lower_bound);
    if (!found.plan) return;
    found.plan->prediction.timeline.spans.clear();
    const Seconds step = found.plan->prediction.iteration;
    if (!trial.plan || step < trial.plan->prediction.iteration) trial.plan = std::move(found.plan);
    trial.need.reset();
    if (step >= best_ * (1 - kEqual)) return;
    best_ = step;
    tell();
  }

  void raise(SettingTrial& trial, Seconds lower_bound) {
    if (lower_bound <= trial.lower_bound) return;
    trial.lower_bound = lower_bound;
    tell();
  }

  /// Tells of the bound of all plans, and how many settings are done with.
  void tell() const {
    if (costs_.progress == nullptr) return;
    const auto settled =
        std::ranges::count_if(out_.trials, [&](const SettingTrial& t) { return is_settled(t, best_); });
    told_.tried(to_index(settled), out_.trials.size());
    told_.proved(lower_bound());
  }

  /// Of all plans: the smallest of the trials' bounds, or the best step.
  [[nodiscard]] Seconds lower_bound() const {
    Seconds out = best_;
    for (const SettingTrial& trial : out_.trials) {
      if (!is_settled(trial, best_)) out = std::min(out, trial.lower_bound);
    }
    return out;
  }

  void search(SettingTrial& trial, Seconds time, std::optional<Seconds> upper_bound) {
    ShorterPlan found = shorter_plan(graph_of(trial), topology_, costs_, constraints_of(trial, time), upper_bound);
    trial.is_exhausted = found.is_complete;
    take(trial, std::move(found));
  }

  /// Improves a trial's bound in little time.
  void bound(SettingTrial& trial) {
    if (best_ >= kForever || !is_open(trial)) return;
    const Constraints constraints = constraints_of(trial, std::max(SearchTuning::kLeastSlice, left()));
    raise(trial, quick_bound(graph_of(trial), topology_, costs_, constraints, best_));
  }

  void bound_all() {
    for (SettingTrial* trial : open_trials([](const SettingTrial& other) { return other.lower_bound; })) {
      if (left() <= Seconds(0)) return;
      bound(*trial);
    }
  }

  /// As `plan` without a search of settings would, unless none of these plans can be the best.
  void search_request() {
    for (SettingTrial& trial : out_.trials) {
      const StepSettings& settings = trial.settings;
      if (settings.graph != space_.asked || settings.plan.schedule != space_.constraints.plan.schedule ||
          !is_plain(settings, space_))
        continue;
      bound(trial);
      if (is_open(trial))
        search(trial, std::max(SearchTuning::kLeastSlice, std::min(left(), all_ * SearchTuning::kRequestShare)), {});
    }
  }

  /// The candidates of `auto` with all settings, those first whose equal shares seem to be the fastest.
  void draft_all() {
    // Without buckets, which make little difference.
    std::map<std::tuple<std::size_t, std::string, bool, int, StateSharding>, Seconds> known;
    const auto estimate = [&](const SettingTrial& trial) {
      const PlanSettings& plan = trial.settings.plan;
      const auto [it, fresh] = known.try_emplace(
          std::tuple(trial.settings.graph, plan.schedule, plan.recompute, plan.recompute_every, plan.sharding),
          kForever);
      if (fresh) {
        const auto step = estimated_step(graph_of(trial), topology_, constraints_of(trial, SearchTuning::kLeastSlice));
        it->second = step.value_or(kForever);
      }
      return std::tuple(it->second, plan.schedule != space_.constraints.plan.schedule, trial.lower_bound);
    };
    for (SettingTrial* trial : open_trials(estimate)) {
      if (time_.is_past(SearchTuning::kDraftedShare)) return;
      if (!is_open(*trial)) continue;
      const Constraints constraints = constraints_of(*trial, SearchTuning::kLeastSlice);
      const auto stop = [&] { return best_ < kForever && time_.is_past(1); };
      take(*trial, drafted_plan(graph_of(*trial), topology_, costs_, constraints, upper_bound(), stop));
      if (trial->plan || !limit_ || best_ < kForever) continue;
      const std::optional<Bytes> need = least_need(graph_of(*trial), topology_, costs_, constraints);
      if (need && *need > *limit_) trial->need = need;
    }
  }

  /// In each round every open trial has the same share of the time that is left: most goes to the first ones.
  void search_rounds() {
    const auto promise = [](const SettingTrial& trial) {
      return std::tuple(trial.plan ? trial.plan->prediction.iteration : kForever, trial.lower_bound);
    };
    std::vector<SettingTrial*> open = open_trials(promise);
    while (!open.empty() && left() > Seconds(0)) {
      for (SettingTrial* trial : open) {
        if (left() <= Seconds(0)) return;
        if (is_open(*trial))
          search(*trial, std::min(left(), std::max(left() * SearchTuning::kSliceShare, SearchTuning::kLeastSlice)),
                 upper_bound());
      }
      open = open_trials([](const SettingTrial& trial) { return trial.lower_bound; });
    }
  }

  /// The trials that may still have a better plan, sorted.
  template <class Key>
  std::vector<SettingTrial*> open_trials(const Key& key) {
    std::vector<SettingTrial*> out;
    for (SettingTrial& trial : out_.trials) {
      if (is_open(trial)) out.push_back(&trial);
    }
    std::ranges::stable_sort(out, {}, [&](const SettingTrial* trial) { return key(*trial); });
    return out;
  }

  /// Says why there is no plan with the settings that need the least memory.
  [[noreturn]] void throw_no_plan() {
    const SettingTrial* smallest = &out_.trials.front();
    for (const SettingTrial& trial : out_.trials) {
      if (trial.need && (!smallest->need || *trial.need < *smallest->need)) smallest = &trial;
    }
    const Constraints constraints = constraints_of(*smallest, all_);
    const bool is_proven =
        std::ranges::all_of(out_.trials, [](const SettingTrial& trial) { return is_settled(trial, kForever); });
    std::string finding = fmt::format("no plan with any of {} settings", out_.trials.size());
    if (!is_proven)
      finding = fmt::format("found {} in {}, nor a proof that there is none", finding, format_seconds(all_));
    const Graph& graph = graph_of(*smallest);
    Infeasible reason{"no candidate is possible"};
    if (const auto small = smallest_plan(graph, topology_, costs_, constraints, SearchTuning::kLeastSlice)) {
      const RankedPlan ranked = predicted_plan(small->origin, graph, topology_, small->candidate, costs_, constraints);
      const char* const fits = is_proven ? kNoPlanFits : "none was found that fits in memory";
      reason = no_plan_fits(fits, ranked, graph, topology_, costs_, constraints, least_need);
    }
    throw NoAnswerError(fmt::format("{}; with {}: ", finding, settings_text(smallest->settings, space_)), reason);
  }

  const SettingSpace& space_;
  const Topology& topology_;
  const CostModel& costs_;
  std::optional<Bytes> limit_;
  Seconds all_;
  SearchTime time_;
  ToldSearch told_;
  SettingsSearch out_;
  Seconds best_ = kForever;  ///< step
};

}  // namespace

bool is_settled(const SettingTrial& trial, Seconds best) { return trial.lower_bound >= best * (1 - kEqual); }

SettingsSearch search_schedules(const std::vector<std::string>& schedules, const Constraints& constraints,
                                const std::function<StrategyResult(const Constraints&)>& plan) {
  SettingsSearch out;
  bool has_plan = false;
  bool all_bounded = true;
  for (const std::string& schedule : schedules) out.trials.push_back(try_schedule(schedule, constraints, plan));
  for (SettingTrial& trial : out.trials) {
    if (!trial.plan) continue;
    has_plan = true;
    const std::optional<Seconds>& bound = trial.plan->plan.lower_bound;
    all_bounded = all_bounded && bound;
    if (!bound) continue;
    trial.lower_bound = *bound;
    out.lower_bound = std::min(out.lower_bound.value_or(*bound), *bound);
  }
  if (!all_bounded) out.lower_bound.reset();
  if (has_plan) {
    choose_best(out);
    return out;
  }
  std::string reasons;
  for (const SettingTrial& trial : out.trials)
    reasons += fmt::format("\n  {}: {}", trial.settings.plan.schedule, trial.reason);
  throw NoAnswerError("", {"no plan with any of these schedules:" + reasons});
}

SettingsSearch search_settings(const SettingSpace& space, const Topology& topology, const CostModel& costs) {
  return SettingsRun(space, topology, costs).run();
}

}  // namespace stagecraft::partitioner
