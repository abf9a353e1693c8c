#include "partitioner/choices/listing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "costmodel/analysis/explain.h"
#include "costmodel/index.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"
#include "partitioner/candidate.h"
#include "partitioner/choices/choice.h"
#include "partitioner/choices/settings_search.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/strategies/auto.h"

namespace stagecraft::partitioner {
namespace {

/// A row of a table of plans.
struct PlanRow {
  std::string name;
  const RankedPlan* ranked = nullptr;  ///< null: there is no plan
  std::string outcome;
};

/// The title of a column of steps in a run, see step_in_run.
constexpr const char* kInRun = "in a run";

/// A table of what plans achieve; `best`: the row that is marked.
std::string plans_table(const TableColumn& name, const std::vector<PlanRow>& plans, std::optional<std::size_t> best,
                        const std::string& mark, const Screen& screen) {
  const bool overlap = std::ranges::any_of(
      plans, [](const PlanRow& row) { return row.ranked != nullptr && row.ranked->plan.run_iteration; });
  std::vector<TableColumn> columns{name, {.title = "replicas"}, {.title = "step"}};
  if (overlap) columns.push_back({.title = kInRun});
  for (const char* title : {"idle", "peak memory"}) columns.push_back({.title = title});
  columns.push_back({.title = "", .left = true});
  std::vector<std::vector<std::string>> rows;
  for (const PlanRow& row : plans) {
    std::vector<std::string>& cells = rows.emplace_back();
    cells.push_back(row.name);
    if (row.ranked != nullptr) {
      const Prediction& prediction = row.ranked->prediction;
      cells.push_back(replicas_text(replicas_of(row.ranked->plan), kReplicasWidth));
      cells.push_back(mark + format_seconds(prediction.iteration));
      if (overlap) cells.push_back(mark + format_seconds(step_in_run(row.ranked->plan).value_or(prediction.iteration)));
      cells.push_back(fmt::format("{}{:.1f} %", mark, prediction.bubble * 100));
      cells.push_back(mark + format_bytes(peak_memory(prediction)));
    }
    cells.resize(columns.size());
    cells.back() = row.outcome;
  }
  return table_text(columns, rows, screen, best);
}

/// Rows of a ranking.
constexpr std::size_t kShown = 12;

/// Plans of the same shape: stages of as many replicas, in order or placed. Only cuts differ.
struct PlansOfShape {
  const RankedPlan* best = nullptr;
  bool in_order = true;
  int count = 0;
};

/// A row of the ranking: a shape, and others that follow it and are as fast, within kTie.
struct RankingRow {
  PlansOfShape first;
  std::vector<PlansOfShape> ties;
};

std::vector<RankingRow> with_ties(const std::vector<PlansOfShape>& shapes) {
  std::vector<RankingRow> out;
  for (const PlansOfShape& shape : shapes) {
    const bool is_tie = !out.empty() && shape.best->fits && out.back().first.best->fits &&
                        shape.best->prediction.iteration <= out.back().first.best->prediction.iteration * (1 + kTie);
    if (is_tie) {
      out.back().ties.push_back(shape);
    } else {
      out.push_back({shape, {}});
    }
  }
  return out;
}

/// "2-1", "2-1 in 2 chunks": the shape without where it is placed.
std::string shape_text(const Plan& plan) {
  return replicas_text(replicas_of(plan), kReplicasWidth) +
         (plan.chunks > 1 ? fmt::format(" in {} chunks", plan.chunks) : "");
}

/// "best of 3; 2-2 and 1-3 within 1 %".
std::string others_text(const RankingRow& row) {
  constexpr std::size_t kNamed = 3;
  std::string out = row.first.count > 1 ? fmt::format("best of {}", row.first.count) : "";
  if (row.ties.empty()) return out;
  std::vector<std::string> names;
  for (const PlansOfShape& tie : std::span(row.ties).first(std::min(row.ties.size(), kNamed)))
    names.push_back(shape_text(tie.best->plan) + (tie.in_order ? "" : " placed"));
  if (row.ties.size() > kNamed) names.push_back(fmt::format("{} more", row.ties.size() - kNamed));
  return out + (out.empty() ? "" : "; ") + fmt::format("{} within {:g} %", fmt::join(names, ", "), kTie * 100);
}

/// In the order of the best of each.
std::vector<PlansOfShape> by_shape(const std::vector<RankedPlan>& plans) {
  std::vector<PlansOfShape> out;
  std::map<std::tuple<std::vector<int>, int, bool, bool>, std::size_t> places;
  for (const RankedPlan& r : plans) {
    const bool in_order = is_in_order(r.plan);
    const auto [place, is_new] = places.try_emplace({replicas_of(r.plan), r.plan.chunks, in_order, r.fits}, out.size());
    if (is_new) out.push_back({&r, in_order, 0});
    ++out[place->second].count;
  }
  return out;
}

constexpr double kSecondsPerHour = 3600;
/// The table shows prices of this many steps, one step's is too small to read.
constexpr double kSteps = 1000;

format::ListedPlan listed(const RankedPlan& ranked, const ListRequest& request) {
  const Plan& plan = ranked.plan;
  const Merits merit = merits(ranked);
  format::ListedPlan out;
  out.origin = ranked.origin;
  for (const Stage& stage : plan.stages) {
    out.first.push_back(stage.layers.front());
    out.devices.push_back(format_ranges(stage.devices));
    out.recomputed += stage.recompute ? 1 : 0;
  }
  out.replicas = replicas_of(plan);
  out.device_count = merit.devices;
  out.chunks = plan.chunks;
  out.step = merit.step;
  out.samples_per_s = merit.samples_per_s;
  out.memory = merit.memory;
  out.device_time = device_time(merit);
  out.parts = mean_parts(ranked.prediction);
  if (request.price) out.price = *request.price * out.device_time.value / kSecondsPerHour;
  return out;
}

/// How many of the first plans, by step, are no longer than any other can be.
int proven_of(const std::vector<RankedPlan>& plans, Seconds others) {
  const auto is_proven = [&](const RankedPlan& ranked) { return ranked.prediction.iteration * (1 - kEqual) <= others; };
  return to_int(std::ranges::find_if_not(plans, is_proven) - plans.begin());
}

/// Whether it is proven that no plan is missing before those of the list.
std::string proven_text(int proven, int all) {
  if (proven >= all) return "proven: no other plan of the search has a shorter step than these\n";
  if (proven == 0) return "time was up before it was proven that no other plan is shorter, see --time-limit\n";
  return fmt::format(
      "proven for the first {}: no other plan of the search has a shorter step; for more see --time-limit\n", proven);
}

/// "optimal, recomputed".
std::string name_of(const format::ListedPlan& plan) {
  const int stages = to_int(plan.replicas.size());
  if (plan.recomputed == 0) return plan.origin;
  if (plan.recomputed == stages) return plan.origin + ", recomputed";
  return fmt::format("{}, {} of {} stages recomputed", plan.origin, plan.recomputed, stages);
}

constexpr const char* kOpen = "open";
constexpr const char* kBest = "best";

std::string outcome_of(const SettingTrial& trial, const SettingsSearch& search) {
  if (&trial == &search.trials[search.best]) return kBest;
  Seconds shortest = kForever;
  for (const SettingTrial& other : search.trials) {
    if (other.plan) shortest = std::min(shortest, other.plan->prediction.iteration);
  }
  if (!is_settled(trial, shortest)) return kOpen;
  if (trial.plan) return "not better";
  if (trial.need) return "does not fit";
  return trial.lower_bound >= kForever ? "no plan" : "not better";
}

format::ListedSetting listed(const SettingTrial& trial, const SettingSpace& space, bool has_bounds) {
  const SizedGraph& sized = space.graphs[trial.settings.graph];
  const PlanSettings& settings = trial.settings.plan;
  format::ListedSetting out;
  out.microbatch_samples = sized.graph.microbatch_samples;
  out.times = sized.origin;
  out.microbatches = settings.microbatches;
  out.schedule = settings.schedule;
  out.recompute = settings.recompute;
  out.recompute_every = settings.recompute_every;
  out.gradient_bucket_bytes = settings.gradient_bucket_bytes;
  out.sharding = settings.sharding;
  out.memory = trial.need;
  if (has_bounds && trial.lower_bound < kForever) out.lower_bound = trial.lower_bound;
  if (!trial.plan) return out;
  out.replicas = replicas_of(trial.plan->plan);
  out.chunks = trial.plan->plan.chunks;
  out.step = trial.plan->prediction.iteration;
  out.run_step = trial.plan->plan.run_iteration;
  out.memory = merits(*trial.plan).memory;
  return out;
}

std::string microbatches_text(const format::ListedSetting& setting) {
  std::string out = std::to_string(setting.microbatches);
  if (setting.microbatch_samples) out += fmt::format(" x {}", *setting.microbatch_samples);
  return out;
}

std::int64_t open_ones(const format::PlanList& list) {
  return std::ranges::count(list.settings, kOpen, &format::ListedSetting::outcome);
}

}  // namespace

std::string gap_percent(Seconds iteration, Seconds lower_bound) {
  if (lower_bound >= iteration) return "0";
  const double percent = (iteration / lower_bound - 1) * 100;
  if (percent < 0.1) return "0.1";
  return percent < 10 ? fmt::format("{:.2g}", percent) : fmt::format("{:.0f}", percent);
}

std::string gap_text(Seconds iteration, Seconds lower_bound) {
  if (lower_bound >= iteration) return "the best possible";
  if (lower_bound <= Seconds(0)) return "without a lower bound";
  return fmt::format("at most {} % above the best possible", gap_percent(iteration, lower_bound));
}

std::string ranking_text(const Ranking& ranking, const std::string& mark, const Screen& screen) {
  const std::vector<RankedPlan>& plans = ranking.plans;
  std::vector<PlanRow> rows;
  const std::vector<RankingRow> shapes = with_ties(by_shape(plans));
  for (const RankingRow& row : std::span(shapes).first(std::min(shapes.size(), kShown))) {
    const PlansOfShape& shape = row.first;
    const RankedPlan& r = *shape.best;
    const bool says_placed = shape.in_order || r.origin.ends_with(", placed");
    const std::string chunks = r.plan.chunks > 1 ? fmt::format(", {} chunks", r.plan.chunks) : "";
    rows.push_back(
        {r.origin + chunks + (says_placed ? "" : ", placed"), &r, r.fits ? others_text(row) : "does not fit"});
  }
  const auto best = plans.front().fits ? std::optional<std::size_t>(0) : std::nullopt;
  std::string out = plans_table({.title = "plan", .left = true, .can_be_cut = true}, rows, best, mark, screen);
  if (shapes.size() > kShown) out += fmt::format("and {} more\n", shapes.size() - kShown);
  if (ranking.slower > 0) {
    out += fmt::format("{} more skipped: {} compute time alone exceeds the best step\n", ranking.slower,
                       ranking.slower == 1 ? "its" : "their");
  }
  const auto ties = std::ranges::count_if(plans, [&](const RankedPlan& r) {
    return r.fits && r.prediction.iteration <= plans.front().prediction.iteration * (1 + kTie);
  });
  if (ties > 1 && !ranking.lower_bound) {
    out += fmt::format("steps within {:g} % are ties: fewer devices, then fewer stages win\n", kTie * 100);
  }
  if (!ranking.cut_off.empty()) {
    out += fmt::format("the time limit cut off: {}; a longer --time-limit may give a better plan or a smaller gap\n",
                       fmt::join(ranking.cut_off, ", "));
  }
  if (const std::string text = skipped_text(ranking.skipped); !text.empty()) out += text + "\n";
  return out;
}

std::vector<RankedPlan> chosen(std::vector<RankedPlan> plans, const ListRequest& request) {
  if (request.front) plans = front_of(std::move(plans));
  std::erase_if(plans, [&](const RankedPlan& ranked) { return !meets(ranked, request.goal); });
  if (request.front || request.goal.objective != Objective::Time) sort_by_goal(plans, request.goal);
  if (request.most > 0 && to_int(plans.size()) > request.most) plans.resize(to_index(request.most));
  return plans;
}

format::PlanList plan_list(const std::vector<RankedPlan>& plans, const Gathered& gathered, const ListRequest& request) {
  format::PlanList out;
  const Plan& first = plans.front().plan;
  out.model = first.model;
  out.list = request.front ? "front" : "top";
  out.objective = to_string(request.goal.objective);
  out.min_samples_per_s = request.goal.min_samples_per_s;
  out.price_per_device_hour = request.price;
  out.schedule = first.schedule;
  out.microbatches = first.microbatches;
  out.memory_limit = request.memory_limit;
  out.lower_bound = gathered.lower_bound;
  out.considered = to_int(gathered.plans.size());
  for (const RankedPlan& ranked : plans) out.plans.push_back(listed(ranked, request));
  if (gathered.others_lower_bound) out.proven = proven_of(plans, *gathered.others_lower_bound);
  for (const Skipped& skipped : gathered.skipped) out.skipped.emplace_back(skipped.reason, skipped.count);
  return out;
}

std::string list_text(const format::PlanList& list, int lines, const std::string& mark, const Screen& screen) {
  const bool costs = list.objective == to_string(Objective::Cost) || list.price_per_device_hour;
  const bool samples = list.plans.front().samples_per_s.has_value();
  const bool front = list.list == "front";
  std::vector<TableColumn> columns{{.title = "#"}, {.title = "plan", .left = true, .can_be_cut = true}};
  if (front) {
    columns.push_back({.title = "stages"});
    columns.push_back({.title = "devices"});
  } else {
    columns.push_back({.title = "devices", .left = true, .can_be_cut = true});
    columns.push_back({.title = "cut before", .left = true, .can_be_cut = true});
  }
  columns.push_back({.title = "step"});
  if (samples) columns.push_back({.title = "samples/s"});
  columns.push_back({.title = "idle"});
  columns.push_back({.title = "peak memory"});
  if (costs) columns.push_back({.title = list.price_per_device_hour ? "price of 1000 steps" : "device time"});
  const std::size_t shown = lines == 0 ? list.plans.size() : std::min(list.plans.size(), to_index(lines));
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < shown; ++i) {
    const format::ListedPlan& plan = list.plans[i];
    std::vector<std::string> row{std::to_string(i + 1), name_of(plan)};
    if (front) {
      row.push_back(std::to_string(plan.replicas.size()));
      row.push_back(std::to_string(plan.device_count));
    } else {
      row.push_back(fmt::format("{}", fmt::join(plan.devices, " / ")));
      row.push_back(fmt::format("{}", fmt::join(plan.first.begin() + 1, plan.first.end(), ",")));
    }
    row.push_back(mark + format_seconds(plan.step));
    if (samples) row.push_back(mark + fmt::format("{:.4g}", plan.samples_per_s.value_or(0)));
    row.push_back(plan.parts && plan.step > Seconds(0)
                      ? fmt::format("{}{:.1f} %", mark, idle_time(*plan.parts) / plan.step * 100)
                      : "");
    row.push_back(mark + format_bytes(plan.memory));
    if (costs) {
      row.push_back(mark +
                    (plan.price ? fmt::format("{:.4g}", *plan.price * kSteps) : format_seconds(plan.device_time)));
    }
    rows.push_back(std::move(row));
  }
  std::string out = table_text(columns, rows, screen, 0);
  if (shown < list.plans.size()) out += fmt::format("and {} more; --all shows them\n", list.plans.size() - shown);
  if (list.proven) out += proven_text(*list.proven, to_int(list.plans.size()));
  return out;
}

format::PlanList settings_list(const SettingsSearch& search, const SettingSpace& space, const Topology& topology) {
  const SettingTrial& best = search.trials[search.best];
  const bool has_bounds = topology.others.empty();
  Gathered gathered;
  if (has_bounds) gathered.lower_bound = search.lower_bound;
  format::PlanList out = plan_list({*best.plan}, gathered, {});
  out.list = "settings";
  out.considered =
      to_int(std::ranges::count_if(search.trials, [](const SettingTrial& t) { return t.plan.has_value(); }));
  for (const SettingTrial& trial : search.trials) {
    out.settings.push_back(listed(trial, space, has_bounds));
    out.settings.back().outcome = outcome_of(trial, search);
  }
  std::ranges::stable_sort(out.settings, {}, [](const format::ListedSetting& setting) {
    return std::tuple(setting.outcome != kBest, setting.run_step.value_or(setting.step.value_or(kForever)),
                      setting.lower_bound.value_or(kForever));
  });
  return out;
}

std::string settings_list_text(const format::PlanList& list, int lines, const std::string& mark, const Screen& screen) {
  const std::size_t all = list.settings.size();
  const std::size_t shown = lines == 0 ? all : std::min(all, to_index(lines));
  const auto any = [&](const auto& has) { return std::ranges::any_of(list.settings, has); };
  const bool recomputes = any([](const format::ListedSetting& setting) { return setting.recompute; });
  const bool buckets =
      any([](const format::ListedSetting& setting) { return setting.gradient_bucket_bytes.has_value(); });
  const bool shards = any([](const format::ListedSetting& setting) { return setting.sharding != StateSharding::None; });
  const bool overlap = any([](const format::ListedSetting& setting) { return setting.run_step.has_value(); });
  std::vector<TableColumn> columns{{.title = "microbatches"}, {.title = "schedule", .left = true}};
  if (recomputes) columns.push_back({.title = "recompute", .left = true});
  if (buckets) columns.push_back({.title = "buckets"});
  if (shards) columns.push_back({.title = "shard", .left = true});
  columns.push_back({.title = "step"});
  if (overlap) columns.push_back({.title = kInRun});
  for (const char* title : {"lower bound", "memory"}) columns.push_back({.title = title});
  columns.push_back({.title = "", .left = true});
  std::vector<std::vector<std::string>> rows;
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < shown; ++i) {
    const format::ListedSetting& setting = list.settings[i];
    if (setting.outcome == kBest) best = i;
    std::vector<std::string> row{microbatches_text(setting), setting.schedule};
    if (recomputes) row.push_back(recomputation_text(setting.recompute, setting.recompute_every));
    if (buckets) row.push_back(setting.gradient_bucket_bytes ? format_bytes(*setting.gradient_bucket_bytes) : "none");
    if (shards) row.emplace_back(to_string(setting.sharding));
    row.push_back(setting.step ? mark + format_seconds(*setting.step) : "");
    if (overlap) row.push_back(setting.step ? mark + format_seconds(setting.run_step.value_or(*setting.step)) : "");
    row.push_back(setting.lower_bound ? mark + format_seconds(*setting.lower_bound) : "");
    row.push_back(setting.memory ? mark + format_bytes(*setting.memory) : "");
    row.push_back(setting.outcome);
    rows.push_back(std::move(row));
  }
  std::string out = table_text(columns, rows, screen, best);
  if (shown < all) out += fmt::format("and {} more; --all shows them\n", all - shown);
  if (const auto open = open_ones(list); open > 0) {
    out += fmt::format("{} of {} settings {} open: time was up before it was clear that no plan with {} is better\n",
                       open, all, open == 1 ? "is" : "are", open == 1 ? "it" : "them");
  }
  return out;
}

std::string settings_note(const SettingsSearch& search, const SettingSpace& space) {
  const SettingTrial& best = search.trials[search.best];
  const auto open = std::ranges::count_if(
      search.trials, [&](const SettingTrial& trial) { return outcome_of(trial, search) == kOpen; });
  return fmt::format("best of {} settings{}: {}", search.trials.size(),
                     open == 0 ? "" : fmt::format(", {} of them open", open), settings_text(best.settings, space));
}

std::string schedules_text(const SettingsSearch& search, const std::string& mark, const Screen& screen) {
  std::vector<PlanRow> rows;
  std::string reasons;
  for (const SettingTrial& trial : search.trials) {
    const std::string& schedule = trial.settings.plan.schedule;
    if (!trial.plan) {
      rows.push_back({schedule, nullptr, "no plan"});
      reasons += fmt::format("no plan with {}: {}\n", schedule, trial.reason);
      continue;
    }
    const bool is_best = &trial == &search.trials[search.best];
    rows.push_back({schedule, &*trial.plan, !trial.plan->fits ? "does not fit" : is_best ? kBest : ""});
  }
  return plans_table({.title = "schedule", .left = true}, rows, search.best, mark, screen) + reasons;
}

std::string schedules_note(const SettingsSearch& search) {
  std::vector<std::string> steps;
  std::vector<std::string> without;
  for (const SettingTrial& trial : search.trials) {
    const std::string& schedule = trial.settings.plan.schedule;
    if (trial.plan) {
      steps.push_back(schedule + " " +
                      format_seconds(step_in_run(trial.plan->plan).value_or(trial.plan->prediction.iteration)));
    } else {
      without.push_back(schedule);
    }
  }
  std::string out = fmt::format("{}", fmt::join(steps, ", "));
  if (!without.empty()) out += fmt::format("; no plan with {}", fmt::join(without, ", "));
  return out;
}

}  // namespace stagecraft::partitioner
