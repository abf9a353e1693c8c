#include "partitioner/settings/settings_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"
#include "partitioner/candidate.h"
#include "partitioner/choices/choice.h"
#include "partitioner/choices/listing.h"
#include "partitioner/search/least_time.h"

namespace stagecraft::partitioner {
namespace {

constexpr const char* kOpen = "open";
constexpr const char* kBest = "best";

std::string outcome_of(const SettingTrial& trial, const SettingTrial& best) {
  if (&trial == &best) return kBest;
  if (!is_settled(trial, best.plan->prediction.iteration)) return kOpen;
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
  out.memory = trial.need;
  if (has_bounds && trial.lower_bound < kForever) out.lower_bound = trial.lower_bound;
  if (!trial.plan) return out;
  out.replicas = replicas_of(trial.plan->plan);
  out.chunks = trial.plan->plan.chunks;
  out.step = trial.plan->prediction.iteration;
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
    out.settings.back().outcome = outcome_of(trial, best);
  }
  std::ranges::stable_sort(out.settings, {}, [](const format::ListedSetting& setting) {
    return std::tuple(setting.outcome != kBest, setting.step.value_or(kForever),
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
  std::vector<TableColumn> columns{{.title = "microbatches"}, {.title = "schedule", .left = true}};
  if (recomputes) columns.push_back({.title = "recompute", .left = true});
  if (buckets) columns.push_back({.title = "buckets"});
  for (const char* title : {"step", "lower bound", "memory"}) columns.push_back({.title = title});
  columns.push_back({.title = "", .left = true});
  std::vector<std::vector<std::string>> rows;
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < shown; ++i) {
    const format::ListedSetting& setting = list.settings[i];
    if (setting.outcome == kBest) best = i;
    std::vector<std::string> row{microbatches_text(setting), setting.schedule};
    if (recomputes) row.push_back(recomputation_text(setting.recompute, setting.recompute_every));
    if (buckets) row.push_back(setting.gradient_bucket_bytes ? format_bytes(*setting.gradient_bucket_bytes) : "none");
    row.push_back(setting.step ? mark + format_seconds(*setting.step) : "");
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
  const auto open =
      std::ranges::count_if(search.trials, [&](const SettingTrial& trial) { return outcome_of(trial, best) == kOpen; });
  return fmt::format("best of {} settings{}: {}", search.trials.size(),
                     open == 0 ? "" : fmt::format(", {} of them open", open), settings_text(best.settings, space));
}

}  // namespace stagecraft::partitioner
