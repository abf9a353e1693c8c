#include "partitioner/choices/schedule_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/schedule.h"
#include "costmodel/text/replicas_text.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"
#include "partitioner/candidate.h"

namespace stagecraft::partitioner {
namespace {

ScheduleTrial try_schedule(const std::string& schedule, Constraints constraints,
                           const std::function<StrategyResult(const Constraints&)>& plan) {
  constraints.plan.schedule = schedule;
  try {
    StrategyResult result = plan(constraints);
    if (const auto* infeasible = std::get_if<Infeasible>(&result)) return {schedule, infeasible->reason};
    return {schedule, std::move(std::get<Ranking>(result).plans.front())};
  } catch (const std::invalid_argument& e) { return {schedule, e.what()}; }
}

const RankedPlan* plan_of(const ScheduleTrial& trial) { return std::get_if<RankedPlan>(&trial.answer); }

/// Whether `a` is better than `b`; of equal ones the first stays.
bool is_better(const RankedPlan& a, const RankedPlan& b) {
  if (a.fits != b.fits) return a.fits;
  return a.prediction.iteration < b.prediction.iteration;
}

}  // namespace

std::vector<std::string> schedules_to_compare() {
  std::vector<std::string> out;
  for (const ScheduleEntry& schedule : schedules()) {
    if (schedule.trains && schedule.weights == Weights::Flushed && !schedule.needs_lists) out.push_back(schedule.name);
  }
  return out;
}

ScheduleSearch search_schedules(const std::vector<std::string>& schedules, const Constraints& constraints,
                                const std::function<StrategyResult(const Constraints&)>& plan) {
  ScheduleSearch out;
  const RankedPlan* best = nullptr;
  bool all_bounded = true;
  for (const std::string& schedule : schedules) out.trials.push_back(try_schedule(schedule, constraints, plan));
  for (std::size_t i = 0; i < out.trials.size(); ++i) {
    const RankedPlan* ranked = plan_of(out.trials[i]);
    if (ranked == nullptr) continue;
    if (best == nullptr || is_better(*ranked, *best)) {
      best = ranked;
      out.best = i;
    }
    const std::optional<Seconds>& bound = ranked->plan.lower_bound;
    all_bounded = all_bounded && bound;
    if (bound) out.lower_bound = std::min(out.lower_bound.value_or(*bound), *bound);
  }
  if (!all_bounded) out.lower_bound.reset();
  if (best != nullptr) return out;
  std::string reasons;
  for (const ScheduleTrial& trial : out.trials)
    reasons += fmt::format("\n  {}: {}", trial.schedule, std::get<std::string>(trial.answer));
  throw NoAnswerError("", {"no plan with any of these schedules:" + reasons});
}

std::string trials_text(const ScheduleSearch& search, const std::string& mark, const Screen& screen) {
  std::vector<std::vector<std::string>> rows;
  std::string reasons;
  for (const ScheduleTrial& trial : search.trials) {
    const RankedPlan* ranked = plan_of(trial);
    if (ranked == nullptr) {
      rows.push_back({trial.schedule, "", "", "", "", "no plan"});
      reasons += fmt::format("no plan with {}: {}\n", trial.schedule, std::get<std::string>(trial.answer));
      continue;
    }
    Bytes peak;
    for (const RankMemory& memory : ranked->prediction.timeline.memory) peak = std::max(peak, memory.total);
    const bool is_best = &trial == &search.trials[search.best];
    rows.push_back({trial.schedule, replicas_text(replicas_of(ranked->plan), kReplicasWidth),
                    mark + format_seconds(ranked->prediction.iteration),
                    fmt::format("{}{:.1f} %", mark, ranked->prediction.bubble * 100), mark + format_bytes(peak),
                    !ranked->fits ? "does not fit"
                    : is_best     ? "best"
                                  : ""});
  }
  return table_text({{.title = "schedule", .left = true},
                     {.title = "replicas"},
                     {.title = "step"},
                     {.title = "idle"},
                     {.title = "peak memory"},
                     {.title = "", .left = true}},
                    rows, screen, search.best) +
         reasons;
}

std::string trials_note(const ScheduleSearch& search) {
  std::vector<std::string> steps;
  std::vector<std::string> without;
  for (const ScheduleTrial& trial : search.trials) {
    if (const RankedPlan* ranked = plan_of(trial)) {
      steps.push_back(trial.schedule + " " + format_seconds(ranked->prediction.iteration));
    } else {
      without.push_back(trial.schedule);
    }
  }
  std::string out = fmt::format("{}", fmt::join(steps, ", "));
  if (!without.empty()) out += fmt::format("; no plan with {}", fmt::join(without, ", "));
  return out;
}

}  // namespace stagecraft::partitioner
