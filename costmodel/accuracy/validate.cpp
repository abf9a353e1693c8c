#include "costmodel/accuracy/validate.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

#include "costmodel/accuracy/compare.h"
#include "costmodel/index.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"

namespace stagecraft {
namespace {

std::string ranks_text(int ranks) { return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s"); }

Regime regime(const std::string& name, const std::vector<ValidatedRun>& runs, double noise, const auto& belongs) {
  std::vector<Scored> chosen;
  for (const ValidatedRun& run : runs) {
    if (belongs(run)) chosen.push_back(run.times);
  }
  return {name, error_scores(chosen), order_scores(chosen, noise), coverage_scores(chosen)};
}

/// One regime for each value of `key`, if there are several.
void add_regimes(std::vector<Regime>& regimes, const std::vector<ValidatedRun>& runs, double noise, const auto& key,
                 const auto& name) {
  std::set<decltype(key(runs.front()))> values;
  for (const ValidatedRun& run : runs) values.insert(key(run));
  if (values.size() < 2) return;
  for (const auto& value : values)
    regimes.push_back(regime(name(value), runs, noise, [&](const ValidatedRun& run) { return key(run) == value; }));
}

/// None without runs.
std::vector<Regime> regimes_of(const std::vector<ValidatedRun>& runs, double noise) {
  if (runs.empty()) return {};
  const auto word = [](const char* what) {
    return [what](const std::string& value) { return fmt::format("{} {}", what, value); };
  };
  std::vector<Regime> out{regime("all", runs, noise, [](const ValidatedRun&) { return true; })};
  add_regimes(out, runs, noise, [](const ValidatedRun& run) { return run.model; }, word("model"));
  add_regimes(out, runs, noise, [](const ValidatedRun& run) { return run.schedule; }, word("schedule"));
  add_regimes(out, runs, noise, [](const ValidatedRun& run) { return run.ranks; }, ranks_text);
  return out;
}

std::string percent(double share) { return fmt::format("{:.1f} %", share * 100); }
std::string signed_percent(double share) { return fmt::format("{:+.1f} %", share * 100); }

template <class Show>
std::string shown(const std::optional<double>& value, Show show) {
  return value ? show(*value) : std::string("-");
}

std::string regimes_text(const std::vector<Regime>& regimes, const Screen& screen) {
  std::vector<std::vector<std::string>> rows;
  for (const Regime& r : regimes) {
    const bool intervals = r.coverage.n > 0;
    rows.push_back({r.name, std::to_string(r.errors.n), percent(r.errors.median), percent(r.errors.mean),
                    percent(r.errors.p90), percent(r.errors.largest), signed_percent(r.errors.bias),
                    shown(r.order.tau, [](double v) { return fmt::format("{:.2f}", v); }),
                    shown(r.order.largest_regret, percent), intervals ? percent(r.coverage.inside) : "-",
                    intervals ? percent(r.coverage.half_width) : "-"});
  }
  return table_text({{.title = "runs", .left = true, .can_be_cut = true},
                     {.title = "n"},
                     {.title = "median"},
                     {.title = "mean"},
                     {.title = "p90"},
                     {.title = "largest"},
                     {.title = "bias"},
                     {.title = "tau"},
                     {.title = "regret"},
                     {.title = "inside"},
                     {.title = "half-width"}},
                    rows, screen);
}

}  // namespace

ValidatedRun validated_run(const std::string& name, const Prediction& prediction, const Measurement& measurement,
                           std::size_t skip) {
  const Comparison comparison = compare(prediction, measurement, skip);
  ValidatedRun out{.name = name,
                   .model = measurement.model,
                   .schedule = measurement.schedule,
                   .ranks = measurement.timeline.ranks,
                   .step_samples = measurement.microbatch_samples.value_or(0) * measurement.microbatches,
                   .times = {.predicted = comparison.step.predicted,
                             .low = comparison.low,
                             .high = comparison.high,
                             .measured = comparison.step.measured,
                             .group = 0}};
  if (!(out.times.measured > Seconds(0))) throw std::invalid_argument("the measured step took no time");
  return out;
}

Validation validated(std::vector<ValidatedRun> runs, double noise) {
  if (runs.empty()) throw std::invalid_argument("no runs to score");
  std::map<std::tuple<std::string, int, std::int64_t>, int> groups;
  for (ValidatedRun& run : runs) {
    const auto key = std::tuple(run.model, run.ranks, run.step_samples);
    run.times.group = groups.emplace(key, to_int(groups.size())).first->second;
  }
  std::vector<Regime> regimes = regimes_of(runs, noise);
  return {.runs = std::move(runs), .regimes = std::move(regimes), .noise = noise};
}

std::string validation_text(const Validation& validation, const Screen& screen) {
  std::string out = regimes_text(validation.regimes, screen);
  std::vector<std::vector<std::string>> rows;
  for (const ValidatedRun& run : validation.runs) {
    const Scored& t = run.times;
    const bool inside = t.low && t.high && *t.low <= t.measured && t.measured <= *t.high;
    rows.push_back({run.name, run.model, run.schedule, std::to_string(run.ranks), format_seconds(t.predicted),
                    format_seconds(t.measured), signed_percent(t.predicted / t.measured - 1),
                    !t.low || !t.high ? "-"
                    : inside          ? "inside"
                                      : "outside"});
  }
  out += "\n" + table_text({{.title = "measurement", .left = true, .can_be_cut = true},
                            {.title = "model", .left = true, .can_be_cut = true},
                            {.title = "schedule", .left = true},
                            {.title = "ranks"},
                            {.title = "predicted"},
                            {.title = "measured"},
                            {.title = "error"},
                            {.title = "interval", .left = true}},
                           rows, screen);
  out += "error: predicted / measured - 1; bias: median with sign; regret: largest of the predicted best plan\n";
  if (validation.noise.value_or(0) > 0)
    out += fmt::format("tau: of pairs whose measured times differ by more than {}\n", percent(*validation.noise));
  return out;
}

}  // namespace stagecraft
