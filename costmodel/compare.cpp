#include "costmodel/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>

namespace stagecraft {
namespace {

using Key = std::pair<int, ActionKind>;

/// Mean seconds of one action by (stage, kind), for each step from `first` on; median over the steps.
std::map<Key, double> action_times(const Timeline& timeline, std::size_t first) {
  std::map<int, std::size_t> order;
  for (std::size_t i = 0; i < timeline.steps.size(); ++i) order[timeline.steps[i].step] = i;
  std::map<Key, std::map<int, std::pair<double, int>>> sums;
  for (const Span& span : timeline.spans) {
    const auto it = order.find(span.step);
    if (it == order.end() || it->second < first) continue;
    auto& [sum, count] = sums[{span.action.stage, span.action.kind}][span.step];
    sum += (span.end - span.start).value;
    ++count;
  }
  std::map<Key, double> out;
  for (const auto& [key, steps] : sums) {
    std::vector<double> means;
    for (const auto& [step, total] : steps) means.push_back(total.first / total.second);
    out[key] = median(std::move(means));
  }
  return out;
}

std::string percent(const Comparison& c) {
  const auto error = c.error();
  return error ? fmt::format("{:+.1f} %", *error * 100) : "-";
}

std::string milliseconds(double seconds) { return fmt::format("{:.3f} ms", seconds * 1e3); }
std::string mebibytes(double bytes) { return fmt::format("{:.1f} MiB", bytes / 1048576); }

std::string number_or_null(const std::optional<double>& value) { return value ? fmt::format("{}", *value) : "null"; }

std::string comparison_json(const Comparison& c, const char* unit) {
  return fmt::format(R"("predicted{0}": {1}, "measured{0}": {2}, "error": {3})", unit, c.predicted, c.measured,
                     number_or_null(c.error()));
}

}  // namespace

std::vector<double> idle_shares(const Timeline& timeline, std::size_t first) {
  const std::vector<StepTime>& steps = timeline.steps;
  std::vector<std::vector<double>> busy(static_cast<std::size_t>(timeline.ranks), std::vector<double>(steps.size()));
  for (const Span& span : timeline.spans) {
    switch (span.action.kind) {
      case ActionKind::SendActivation:
      case ActionKind::ReceiveActivation:
      case ActionKind::SendGradient:
      case ActionKind::ReceiveGradient:
        continue;
      default:
        break;
    }
    // By time and not by number: where steps run into each other a rank works for two of them at once.
    auto step = std::ranges::upper_bound(steps, span.start, {}, &StepTime::end);
    for (; step != steps.end() && step->start < span.end; ++step) {
      const Seconds inside = std::min(span.end, step->end) - std::max(span.start, step->start);
      busy[static_cast<std::size_t>(span.rank)][static_cast<std::size_t>(step - steps.begin())] += inside.value;
    }
  }
  // Spans of a step reach into its neighbours, so all three must have been kept.
  std::set<int> kept;
  for (const Span& span : timeline.spans) kept.insert(span.step);
  const auto known = [&](std::size_t i) {
    return kept.contains(steps[i].step) && (i == 0 || kept.contains(steps[i - 1].step)) &&
           (i + 1 == steps.size() || kept.contains(steps[i + 1].step));
  };
  std::vector<double> out;
  for (const std::vector<double>& of_rank : busy) {
    std::vector<double> shares;
    for (std::size_t i = first; i < steps.size(); ++i) {
      if (!known(i)) continue;
      const double time = (steps[i].end - steps[i].start).value;
      if (time > 0) shares.push_back(std::max(0.0, 1 - of_rank[i] / time));
    }
    out.push_back(shares.empty() ? 0 : median(std::move(shares)));
  }
  return out;
}

Report compare(const Prediction& prediction, const Measurement& measurement, std::size_t skip) {
  const Timeline& measured = measurement.timeline;
  if (prediction.timeline.stage_of_rank != measured.stage_of_rank) {
    const auto text = [](const std::vector<int>& stages) { return fmt::format("{}", fmt::join(stages, " ")); };
    throw std::invalid_argument("the prediction's ranks run stages " + text(prediction.timeline.stage_of_rank) +
                                ", the measured ones " + text(measured.stage_of_rank) +
                                "; both must come from one plan");
  }
  if (measured.steps.empty()) throw std::invalid_argument("the measurement has no steps");
  Report out;
  out.skipped = std::min(skip, measured.steps.size() - 1);
  out.steps = measured.steps.size() - out.skipped;
  out.ended = measurement.ended;
  out.step = {prediction.iteration.value, step_time(measured, out.skipped).value};
  std::vector<double> deviations;
  for (std::size_t i = out.skipped; i < measured.steps.size(); ++i) {
    deviations.push_back(std::abs((measured.steps[i].end - measured.steps[i].start).value - out.step.measured));
  }
  out.spread = median(std::move(deviations));
  if (prediction.samples_per_s && measurement.microbatch_samples && out.step.measured > 0) {
    out.samples = Comparison{*prediction.samples_per_s, static_cast<double>(*measurement.microbatch_samples) *
                                                            measurement.microbatches / out.step.measured};
  }
  const auto predicted_actions = action_times(prediction.timeline, 0);
  const auto measured_actions = action_times(measured, out.skipped);
  std::map<Key, Comparison> actions;
  for (const auto& [key, time] : predicted_actions) actions[key].predicted = time;
  for (const auto& [key, time] : measured_actions) actions[key].measured = time;
  for (const auto& [key, time] : actions) {
    if (key.second == ActionKind::SendActivation || key.second == ActionKind::SendGradient) continue;
    out.actions.push_back({key.first, key.second, time});
  }
  const std::vector<double> predicted_idle = idle_shares(prediction.timeline);
  const std::vector<double> measured_idle = idle_shares(measured, out.skipped);
  for (std::size_t rank = 0; rank < std::min(predicted_idle.size(), measured_idle.size()); ++rank)
    out.bubbles.push_back({static_cast<int>(rank), {predicted_idle[rank], measured_idle[rank]}});
  for (const RankMemory& p : prediction.timeline.memory) {
    for (const RankMemory& m : measured.memory) {
      if (p.rank != m.rank) continue;
      out.memory.push_back({p.rank, {static_cast<double>(p.total.value), static_cast<double>(m.total.value)}});
    }
  }
  return out;
}

std::string report_text(const Report& report) {
  std::string out;
  const auto row = [&](const std::string& what, const std::string& a, const std::string& b, const std::string& c) {
    out += fmt::format("{:<34} {:>14} {:>14} {:>10}\n", what, a, b, c);
  };
  row("", "predicted", "measured", "error");
  row("step", milliseconds(report.step.predicted), milliseconds(report.step.measured), percent(report.step));
  if (report.samples) {
    row("samples per second", fmt::format("{:.1f}", report.samples->predicted),
        fmt::format("{:.1f}", report.samples->measured), percent(*report.samples));
  }
  for (const ActionComparison& action : report.actions) {
    const bool wait = action.kind == ActionKind::ReceiveActivation || action.kind == ActionKind::ReceiveGradient;
    row(fmt::format("stage {} {}{}", action.stage, to_string(action.kind), wait ? " (wait)" : ""),
        milliseconds(action.time.predicted), milliseconds(action.time.measured), percent(action.time));
  }
  for (const BubbleComparison& bubble : report.bubbles) {
    const auto [predicted, measured] = bubble.share;
    row(fmt::format("rank {} bubble", bubble.rank), fmt::format("{:.1f} %", predicted * 100),
        fmt::format("{:.1f} %", measured * 100), fmt::format("{:+.1f} pt", (predicted - measured) * 100));
  }
  for (const MemoryComparison& memory : report.memory) {
    row(fmt::format("rank {} peak memory", memory.rank), mebibytes(memory.bytes.predicted),
        mebibytes(memory.bytes.measured), percent(memory.bytes));
  }
  out += fmt::format("measured: median of {} steps after {} left out, median deviation {}\n", report.steps,
                     report.skipped, milliseconds(report.spread));
  if (!report.ended) out += "the run did not end: this is what it had measured before\n";
  return out;
}

std::string report_json(const Report& report) {
  std::string out =
      "{\"format\": \"stagecraft.report\", \"version\": 1,\n \"step\": {" + comparison_json(report.step, "_s") + "},\n";
  if (report.samples) out += " \"samples\": {" + comparison_json(*report.samples, "_per_s") + "},\n";
  out += fmt::format(" \"spread_s\": {}, \"steps\": {}, \"skipped\": {},\n \"actions\": [", report.spread, report.steps,
                     report.skipped);
  for (std::size_t i = 0; i < report.actions.size(); ++i) {
    const ActionComparison& a = report.actions[i];
    out += fmt::format("{}\n  {{\"stage\": {}, \"action\": \"{}\", {}}}", i ? "," : "", a.stage, to_string(a.kind),
                       comparison_json(a.time, "_s"));
  }
  out += "],\n \"bubbles\": [";
  for (std::size_t i = 0; i < report.bubbles.size(); ++i) {
    out += fmt::format("{}\n  {{\"rank\": {}, {}}}", i ? "," : "", report.bubbles[i].rank,
                       comparison_json(report.bubbles[i].share, "_share"));
  }
  out += "],\n \"memory\": [";
  for (std::size_t i = 0; i < report.memory.size(); ++i) {
    out += fmt::format("{}\n  {{\"rank\": {}, {}}}", i ? "," : "", report.memory[i].rank,
                       comparison_json(report.memory[i].bytes, "_bytes"));
  }
  return out + "]}\n";
}

}  // namespace stagecraft
