#include "costmodel/accuracy/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/text/units_text.h"
#include "costmodel/timeline.h"

namespace stagecraft {
namespace {

using ActionKey = std::pair<int, ActionKind>;

Seconds median_time(const std::vector<Seconds>& times) {
  std::vector<double> values;
  for (const Seconds time : times) values.push_back(time.value);
  return Seconds(median(std::move(values)));
}

template <class T>
std::string percent(const Compared<T>& compared) {
  const auto error = compared.error();
  return error ? fmt::format("{:+.1f} %", *error * 100) : "-";
}

std::string milliseconds(Seconds time) { return fmt::format("{:.3f} ms", time.value * 1e3); }
std::string mebibytes(Bytes bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes.value) / 1048576); }

}  // namespace

std::map<std::pair<int, ActionKind>, Seconds> action_times(const Timeline& timeline, std::size_t first) {
  std::map<int, std::size_t> order;
  for (std::size_t i = 0; i < timeline.steps.size(); ++i) order[timeline.steps[i].step] = i;
  std::map<ActionKey, std::map<int, std::pair<Seconds, int>>> sums;
  for (const Span& span : timeline.spans) {
    const auto it = order.find(span.step);
    if (it == order.end() || it->second < first) continue;
    auto& [sum, count] = sums[{span.action.stage, span.action.kind}][span.step];
    sum += span.end - span.start;
    ++count;
  }
  std::map<ActionKey, Seconds> out;
  for (const auto& [key, steps] : sums) {
    std::vector<Seconds> means;
    for (const auto& [step, total] : steps) means.push_back(total.first / total.second);
    out[key] = median_time(means);
  }
  return out;
}

Seconds step_spread(const Timeline& timeline, std::size_t first) {
  const Seconds median_step = step_time(timeline, first);
  std::vector<Seconds> deviations;
  for (std::size_t i = first; i < timeline.steps.size(); ++i) {
    const Seconds time = timeline.steps[i].end - timeline.steps[i].start;
    deviations.push_back(std::max(time - median_step, median_step - time));
  }
  return median_time(deviations);
}

std::vector<double> idle_shares(const Timeline& timeline, std::size_t first) {
  const std::vector<StepTime>& steps = timeline.steps;
  std::vector<std::vector<Seconds>> busy(to_index(timeline.ranks), std::vector<Seconds>(steps.size()));
  for (const Span& span : timeline.spans) {
    if (is_transfer(span.action.kind)) continue;
    // By time and not by number: where steps overlap, a rank works on two of them at once.
    auto step = std::ranges::upper_bound(steps, span.start, {}, &StepTime::end);
    for (; step != steps.end() && step->start < span.end; ++step) {
      const Seconds inside = std::min(span.end, step->end) - std::max(span.start, step->start);
      busy[to_index(span.rank)][to_index(step - steps.begin())] += inside;
    }
  }
  // Spans of a step reach into its neighbours, so spans of all three must have been kept.
  std::set<int> kept;
  for (const Span& span : timeline.spans) kept.insert(span.step);
  const auto known = [&](std::size_t i) {
    return kept.contains(steps[i].step) && (i == 0 || kept.contains(steps[i - 1].step)) &&
           (i + 1 == steps.size() || kept.contains(steps[i + 1].step));
  };
  std::vector<double> out;
  for (const std::vector<Seconds>& of_rank : busy) {
    std::vector<double> shares;
    for (std::size_t i = first; i < steps.size(); ++i) {
      if (!known(i)) continue;
      const Seconds time = steps[i].end - steps[i].start;
      if (time > Seconds(0)) shares.push_back(std::max(0.0, 1 - of_rank[i] / time));
    }
    out.push_back(shares.empty() ? 0 : median(std::move(shares)));
  }
  return out;
}

std::vector<double> idle_shares_of_positions(const Prediction& prediction) {
  std::vector<double> out;
  for (const std::vector<int>& position : stages_of_positions(prediction)) {
    Seconds idle;
    for (const int s : position) {
      const StagePrediction& stage = prediction.stages[to_index(s)];
      idle += stage.exposed_transfer + stage.bubble;
    }
    out.push_back(prediction.iteration > Seconds(0) ? idle / prediction.iteration : 0);
  }
  return out;
}

std::vector<double> idle_shares(const Prediction& prediction) {
  if (prediction.reckoned_microbatches == 0) return idle_shares(prediction.timeline);
  const std::vector<double> by_position = idle_shares_of_positions(prediction);
  std::vector<double> out;
  for (const int first : prediction.timeline.stage_of_rank)
    out.push_back(to_index(first) < by_position.size() ? by_position[to_index(first)] : 0);
  return out;
}

std::vector<double> idle_shares_in_run(const Prediction& prediction) {
  const Seconds steady = steady_step(prediction);
  const double factor = steady > Seconds(0) ? prediction.iteration / steady : 1;
  std::vector<double> out = idle_shares(prediction);
  for (double& share : out) share = std::max(0.0, 1 - (1 - share) * factor);
  return out;
}

double idle_in_run(const Prediction& prediction) {
  double sum = 0;
  const std::vector<double> shares = idle_shares_in_run(prediction);
  for (const double share : shares) sum += share;
  return shares.empty() ? 0 : sum / static_cast<double>(shares.size());
}

Comparison compare(const Prediction& prediction, const Measurement& measurement, std::size_t skip) {
  const Timeline& measured = measurement.timeline;
  if (prediction.timeline.stage_of_rank != measured.stage_of_rank) {
    const auto text = [](const std::vector<int>& stages) { return fmt::format("{}", fmt::join(stages, " ")); };
    throw std::invalid_argument("the prediction's ranks run stages " + text(prediction.timeline.stage_of_rank) +
                                ", the measured ones " + text(measured.stage_of_rank) +
                                "; both must come from one plan");
  }
  if (measured.steps.empty()) throw std::invalid_argument("the measurement has no steps");
  Comparison out;
  out.skipped = std::min(skip, measured.steps.size() - 1);
  out.steps = measured.steps.size() - out.skipped;
  out.ended = measurement.ended;
  out.distrust = crowded_reasons(measurement.conditions, "the run");
  if (!prediction.channel.empty() && !measurement.channel.empty() && prediction.channel != measurement.channel) {
    out.distrust.push_back("the run used channel " + measurement.channel + ", the links were measured over " +
                           prediction.channel);
  }
  if (prediction.yardstick && measurement.conditions.yardstick) {
    auto drift = drift_between(*prediction.yardstick, *measurement.conditions.yardstick);
    if (auto* known = std::get_if<Drift>(&drift)) out.drift = std::move(*known);
    if (const auto* none = std::get_if<Infeasible>(&drift)) out.no_drift = none->reason;
  }
  out.step = {steady_step(prediction), step_time(measured, out.skipped)};
  const double steady = prediction.iteration > Seconds(0) ? out.step.predicted / prediction.iteration : 1;
  if (prediction.low) out.low = *prediction.low * steady;
  if (prediction.high) out.high = *prediction.high * steady;
  out.spread = step_spread(measured, out.skipped);
  if (prediction.samples_per_s && measurement.microbatch_samples && out.step.measured > Seconds(0)) {
    const double samples = static_cast<double>(*measurement.microbatch_samples) * measurement.microbatches;
    out.samples_per_s = Compared<double>{*prediction.samples_per_s / steady, samples / out.step.measured.value};
    const auto at = [&](double samples_per_s) {
      return scaled(prediction.rates, samples_per_s / *prediction.samples_per_s);
    };
    out.rates = {at(out.samples_per_s->predicted), at(out.samples_per_s->measured)};
  }
  const auto predicted_actions = action_times(prediction.timeline, 0);
  const auto measured_actions = action_times(measured, out.skipped);
  std::map<ActionKey, Compared<Seconds>> actions;
  for (const auto& [key, time] : predicted_actions) actions[key].predicted = time;
  for (const auto& [key, time] : measured_actions) actions[key].measured = time;
  for (const auto& [key, time] : actions) {
    if (is_send(key.second)) continue;
    out.actions.push_back({key.first, key.second, time});
  }
  const std::vector<double> predicted_idle = idle_shares_in_run(prediction);
  const std::vector<double> measured_idle = idle_shares(measured, out.skipped);
  for (std::size_t rank = 0; rank < std::min(predicted_idle.size(), measured_idle.size()); ++rank)
    out.bubbles.push_back({to_int(rank), {predicted_idle[rank], measured_idle[rank]}});
  for (const RankMemory& p : prediction.timeline.memory) {
    for (const RankMemory& m : measured.memory) {
      if (p.rank != m.rank) continue;
      out.memory.push_back({p.rank, {p.total, m.total}});
    }
  }
  return out;
}

std::optional<bool> is_inside(const Comparison& comparison) {
  if (!comparison.low || !comparison.high) return std::nullopt;
  return *comparison.low <= comparison.step.measured && comparison.step.measured <= *comparison.high;
}

std::string comparison_text(const Comparison& comparison) {
  std::string out;
  const auto row = [&](const std::string& what, const std::string& a, const std::string& b, const std::string& c) {
    out += fmt::format("{:<34} {:>14} {:>14} {:>10}\n", what, a, b, c);
  };
  row("", "predicted", "measured", "error");
  row("step", milliseconds(comparison.step.predicted), milliseconds(comparison.step.measured),
      percent(comparison.step));
  if (comparison.samples_per_s) {
    row("samples per second", fmt::format("{:.1f}", comparison.samples_per_s->predicted),
        fmt::format("{:.1f}", comparison.samples_per_s->measured), percent(*comparison.samples_per_s));
  }
  const auto& [predicted_rates, measured_rates] = comparison.rates;
  if (predicted_rates.tokens_per_s && measured_rates.tokens_per_s) {
    const Compared<double> tokens{*predicted_rates.tokens_per_s, *measured_rates.tokens_per_s};
    row("tokens per second", fmt::format("{:.0f}", tokens.predicted), fmt::format("{:.0f}", tokens.measured),
        percent(tokens));
  }
  if (predicted_rates.flops_per_s && measured_rates.flops_per_s) {
    const Compared<FlopsPerSecond> rate{*predicted_rates.flops_per_s, *measured_rates.flops_per_s};
    row("operations per second", format_rate(rate.predicted), format_rate(rate.measured), percent(rate));
  }
  if (predicted_rates.peak_share && measured_rates.peak_share) {
    const Compared<double> share{*predicted_rates.peak_share, *measured_rates.peak_share};
    row("share of the devices' peak", fmt::format("{:.1f} %", share.predicted * 100),
        fmt::format("{:.1f} %", share.measured * 100),
        fmt::format("{:+.1f} pt", (share.predicted - share.measured) * 100));
  }
  for (const ActionComparison& action : comparison.actions) {
    row(fmt::format("stage {} {}{}", action.stage, to_string(action.kind), is_receive(action.kind) ? " (wait)" : ""),
        milliseconds(action.time.predicted), milliseconds(action.time.measured), percent(action.time));
  }
  for (const BubbleComparison& bubble : comparison.bubbles) {
    const auto [predicted, measured] = bubble.share;
    row(fmt::format("rank {} idle in a run", bubble.rank), fmt::format("{:.1f} %", predicted * 100),
        fmt::format("{:.1f} %", measured * 100), fmt::format("{:+.1f} pt", (predicted - measured) * 100));
  }
  for (const MemoryComparison& memory : comparison.memory) {
    row(fmt::format("rank {} peak memory", memory.rank), mebibytes(memory.peak.predicted),
        mebibytes(memory.peak.measured), percent(memory.peak));
  }
  out += fmt::format("measured: median of {} (first {} skipped), median absolute deviation {}\n",
                     count_text(comparison.steps, "step"), comparison.skipped, milliseconds(comparison.spread));
  if (const auto inside = is_inside(comparison)) {
    out += fmt::format("the measured step lies {} the predicted 90 % interval, {} to {}\n",
                       *inside ? "inside" : "outside", milliseconds(*comparison.low), milliseconds(*comparison.high));
  }
  if (comparison.drift) out += "drift since the profile: the device was " + drift_text(*comparison.drift) + "\n";
  if (!comparison.no_drift.empty()) out += "drift unknown: " + comparison.no_drift + "\n";
  for (const std::string& reason : comparison.distrust) out += "not trusted: " + reason + "\n";
  if (!comparison.ended) out += "the run did not finish; this is what it had measured so far\n";
  return out;
}

namespace {

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

void check_share(double share) {
  if (!(share >= 0 && share <= 1))
    throw std::invalid_argument("share " + std::to_string(share) + " is not between 0 and 1");
}

/// Measured time of the run with the least predicted time, over the least measured time, - 1.
double regret(const std::vector<const Scored*>& runs) {
  const auto predicted = [](const Scored* a, const Scored* b) { return a->predicted < b->predicted; };
  const auto measured = [](const Scored* a, const Scored* b) { return a->measured < b->measured; };
  const Scored* chosen = *std::min_element(runs.begin(), runs.end(), predicted);
  const Scored* best = *std::min_element(runs.begin(), runs.end(), measured);
  return chosen->measured / best->measured - 1;
}

}  // namespace

double quantile(std::vector<double> values, double share) {
  if (values.empty()) throw std::invalid_argument("no values to take a quantile of");
  check_share(share);
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(place);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (place - static_cast<double>(low));
}

ErrorScores error_scores(std::span<const Scored> runs) {
  if (runs.empty()) return {};
  std::vector<double> signed_errors;
  std::vector<double> sizes;
  for (const Scored& run : runs) {
    signed_errors.push_back(run.predicted / run.measured - 1);
    sizes.push_back(std::abs(signed_errors.back()));
  }
  return {.n = runs.size(),
          .median = median(sizes),
          .mean = mean(sizes),
          .p90 = quantile(sizes, 0.9),
          .largest = quantile(sizes, 1),
          .bias = median(signed_errors)};
}

OrderScores order_scores(std::span<const Scored> runs, double noise) {
  if (!(noise >= 0) || !std::isfinite(noise))
    throw std::invalid_argument("noise " + std::to_string(noise) + " is not a number of 0 or more");
  std::map<int, std::vector<const Scored*>> groups;
  for (const Scored& run : runs) groups[run.group].push_back(&run);
  OrderScores out;
  std::vector<double> regrets;
  for (const auto& [number, group] : groups) {
    if (group.size() < 2) continue;
    for (std::size_t i = 0; i < group.size(); ++i) {
      for (std::size_t j = i + 1; j < group.size(); ++j) {
        const auto [shorter, longer] = std::minmax(group[i]->measured, group[j]->measured);
        if (group[i]->predicted == group[j]->predicted || !(longer > (1 + noise) * shorter)) continue;
        ++out.pairs;
        if ((group[i]->predicted < group[j]->predicted) == (group[i]->measured < group[j]->measured)) ++out.right;
      }
    }
    regrets.push_back(regret(group));
  }
  if (out.pairs > 0) out.tau = 2 * static_cast<double>(out.right) / static_cast<double>(out.pairs) - 1;
  if (!regrets.empty()) {
    out.mean_regret = mean(regrets);
    out.largest_regret = quantile(regrets, 1);
  }
  return out;
}

CoverageScores coverage_scores(std::span<const Scored> runs) {
  std::vector<double> halves;
  std::size_t inside = 0;
  for (const Scored& run : runs) {
    if (!run.low || !run.high) continue;
    halves.push_back((*run.high - *run.low) / (*run.high + *run.low));
    if (*run.low <= run.measured && run.measured <= *run.high) ++inside;
  }
  if (halves.empty()) return {};
  return {.n = halves.size(),
          .inside = static_cast<double>(inside) / static_cast<double>(halves.size()),
          .half_width = median(halves)};
}

double conformal_half_width(std::vector<double> residuals, double share) {
  if (residuals.empty()) throw std::invalid_argument("no residuals to take an interval from");
  check_share(share);
  for (double& r : residuals) r = std::abs(r);
  std::sort(residuals.begin(), residuals.end());
  const auto n = static_cast<double>(residuals.size());
  // A product such as 20 * 0.9 must not be rounded up to 19.
  const double rank = std::max(1.0, std::ceil((n + 1) * share - 1e-9));
  if (rank <= n) return residuals[static_cast<std::size_t>(rank) - 1];
  return residuals.back() * std::sqrt(rank / n);
}

}  // namespace stagecraft
