#include "costmodel/accuracy/step_change.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "costmodel/accuracy/compare.h"
#include "costmodel/index.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"

namespace stagecraft {
namespace {

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// What both sides of a change have in common, by stage; of ranks with several, by the first.
struct StepFigures {
  std::map<std::pair<int, ActionKind>, Seconds> actions;
  std::map<int, double> idle;   ///< share of the step, mean over the ranks
  std::map<int, Bytes> memory;  ///< the largest peak
};

std::map<int, Bytes> memory_of(const Timeline& timeline) {
  std::map<int, Bytes> out;
  for (const RankMemory& memory : timeline.memory) {
    if (memory.rank < 0 || to_index(memory.rank) >= timeline.stage_of_rank.size()) continue;
    Bytes& most = out[timeline.stage_of_rank[to_index(memory.rank)]];
    most = std::max(most, memory.total);
  }
  return out;
}

/// Not from the timeline, which has gaps in long steps.
std::map<int, double> idle_of(const Prediction& prediction) {
  std::map<int, double> out;
  if (!(prediction.iteration > Seconds(0))) return out;
  const std::vector<double> shares = idle_shares_of_positions(prediction);
  for (std::size_t position = 0; position < shares.size(); ++position)
    out[prediction.stages[position].stage] = shares[position];
  return out;
}

std::map<int, double> idle_of(const Timeline& timeline, const std::vector<double>& shares) {
  std::map<int, std::vector<double>> by_stage;
  for (std::size_t rank = 0; rank < std::min(shares.size(), timeline.stage_of_rank.size()); ++rank)
    by_stage[timeline.stage_of_rank[rank]].push_back(shares[rank]);
  std::map<int, double> out;
  for (const auto& [stage, rank_shares] : by_stage) out[stage] = mean(rank_shares);
  return out;
}

std::optional<Bytes> largest(const std::map<int, Bytes>& memory) {
  std::optional<Bytes> out;
  for (const auto& [stage, bytes] : memory) out = std::max(out.value_or(Bytes(0)), bytes);
  return out;
}

/// Where sides have the same key, one entry with both.
void add_stages(StepChange& out, const StepFigures& first, const StepFigures& second) {
  std::map<std::pair<int, ActionKind>, Changed<Seconds>> actions;
  for (const auto& [key, time] : first.actions) actions[key].first = time;
  for (const auto& [key, time] : second.actions) actions[key].second = time;
  for (const auto& [key, time] : actions) {
    if (is_send(key.second)) continue;
    out.actions.push_back({key.first, key.second, time});
  }
  std::map<int, RanksChange> ranks;
  for (const auto& [stage, share] : first.idle) ranks[stage].bubble.first = share;
  for (const auto& [stage, share] : second.idle) ranks[stage].bubble.second = share;
  for (const auto& [stage, bytes] : first.memory) ranks[stage].memory.first = bytes;
  for (const auto& [stage, bytes] : second.memory) ranks[stage].memory.second = bytes;
  for (auto& [stage, entry] : ranks) {
    entry.stage = stage;
    out.ranks.push_back(entry);
  }
  out.memory = {largest(first.memory), largest(second.memory)};
}

void add_difference(StepChange& out, const std::string& what, const std::string& first, const std::string& second) {
  if (first != second)
    out.differences.push_back({what, first.empty() ? "unknown" : first, second.empty() ? "unknown" : second});
}

std::string or_none(const std::string& text) { return text.empty() ? "none" : text; }

std::optional<Range<Seconds>> interval_of(const Prediction& p) {
  if (!p.low || !p.high) return std::nullopt;
  return Range<Seconds>{*p.low, *p.high};
}

/// Step, spread, count and samples of a run.
void add_run(StepChange& out, const Measurement& run, std::size_t skip, bool is_second) {
  const auto place = [&](auto& changed) -> auto& { return is_second ? changed.second : changed.first; };
  const Seconds step = step_time(run.timeline, skip);
  place(out.step) = step;
  place(out.spread) = step_spread(run.timeline, skip);
  place(out.steps) = run.timeline.steps.size() - skip;
  if (run.microbatch_samples && step > Seconds(0)) {
    place(out.samples_per_s) = static_cast<double>(*run.microbatch_samples) * run.microbatches / step.value;
  }
  for (std::string& reason : crowded_reasons(run.conditions, is_second ? "the second run" : "the first run"))
    out.distrust.push_back(std::move(reason));
  if (!run.ended)
    out.distrust.push_back(std::string("the ") + (is_second ? "second" : "first") + " run did not finish");
}

template <class T>
std::string percent(const Changed<T>& changed) {
  const auto change = changed.change();
  return change ? fmt::format("{:+.1f} %", *change * 100) : "";
}

template <class T, class Text>
std::vector<std::string> row(const std::string& what, const Changed<T>& changed, Text text) {
  return {what, changed.first ? text(*changed.first) : "-", changed.second ? text(*changed.second) : "-",
          percent(changed)};
}

std::vector<std::string> share_row(const std::string& what, const Changed<double>& share) {
  std::vector<std::string> out = row(what, share, [](double value) { return fmt::format("{:.1f} %", value * 100); });
  out.back() = share.first && share.second ? fmt::format("{:+.1f} pt", (*share.second - *share.first) * 100) : "";
  return out;
}

}  // namespace

StepChange step_change(const Prediction& first, const Prediction& second) {
  StepChange out;
  out.step = {first.iteration, second.iteration};
  out.interval = {interval_of(first), interval_of(second)};
  out.samples_per_s = {first.samples_per_s, second.samples_per_s};
  out.bubble = {first.bubble, second.bubble};
  add_stages(out, {action_times(first.timeline), idle_of(first), memory_of(first.timeline)},
             {action_times(second.timeline), idle_of(second), memory_of(second.timeline)});
  add_difference(out, "ranks", std::to_string(first.timeline.ranks), std::to_string(second.timeline.ranks));
  add_difference(out, "stages", std::to_string(first.stages.size()), std::to_string(second.stages.size()));
  add_difference(out, "changes", or_none(fmt::format("{}", fmt::join(first.changes, ", "))),
                 or_none(fmt::format("{}", fmt::join(second.changes, ", "))));
  add_difference(out, "calibration", or_none(first.calibration), or_none(second.calibration));
  add_difference(out, "channel of the links", first.channel, second.channel);
  add_difference(out, "times of another device", or_none(first.other_device), or_none(second.other_device));
  return out;
}

StepChange step_change(const Measurement& first, const Measurement& second, std::size_t skip) {
  StepChange out;
  out.measured = true;
  StepFigures figures[2];
  for (const bool is_second : {false, true}) {
    const Measurement& run = is_second ? second : first;
    if (run.timeline.steps.empty())
      throw std::invalid_argument(std::string("the ") + (is_second ? "second" : "first") + " run has no steps");
    const std::size_t skipped = std::min(skip, run.timeline.steps.size() - 1);
    add_run(out, run, skipped, is_second);
    const std::vector<double> idle = idle_shares(run.timeline, skipped);
    if (!idle.empty()) (is_second ? out.bubble.second : out.bubble.first) = mean(idle);
    figures[is_second ? 1 : 0] = {action_times(run.timeline, skipped), idle_of(run.timeline, idle),
                                  memory_of(run.timeline)};
  }
  add_stages(out, figures[0], figures[1]);
  add_difference(out, "model", first.model, second.model);
  add_difference(out, "schedule", first.schedule, second.schedule);
  add_difference(out, "microbatches", std::to_string(first.microbatches), std::to_string(second.microbatches));
  add_difference(out, "ranks", std::to_string(first.timeline.ranks), std::to_string(second.timeline.ranks));
  add_difference(out, "channel", first.channel, second.channel);
  if (first.conditions.yardstick && second.conditions.yardstick) {
    auto drift = drift_between(*first.conditions.yardstick, *second.conditions.yardstick);
    if (auto* known = std::get_if<Drift>(&drift)) out.drift = std::move(*known);
    if (const auto* none = std::get_if<Infeasible>(&drift)) out.no_drift = none->reason;
  }
  return out;
}

std::string step_change_text(const StepChange& change, const std::string& first, const std::string& second,
                             const Screen& screen) {
  const auto time = [](Seconds value) { return format_seconds(value); };
  const auto bytes = [](Bytes value) { return format_bytes(value); };
  std::vector<std::vector<std::string>> rows{row("step", change.step, time)};
  if (change.interval.first || change.interval.second) {
    const auto text = [](const std::optional<Range<Seconds>>& range) {
      return range ? format_seconds(range->low) + " to " + format_seconds(range->high) : "-";
    };
    rows.push_back({"  90 % interval", text(change.interval.first), text(change.interval.second), ""});
  }
  if (change.spread.first) {
    rows.push_back(row("  median absolute deviation", change.spread, time));
    rows.back().back().clear();
  }
  if (change.samples_per_s.first || change.samples_per_s.second) {
    rows.push_back(
        row("samples per second", change.samples_per_s, [](double value) { return fmt::format("{:.1f}", value); }));
  }
  const std::string idle = change.measured ? "idle in a run" : "idle";
  rows.push_back(share_row(idle, change.bubble));
  rows.push_back(row("largest peak memory", change.memory, bytes));
  for (const ActionChange& action : change.actions) {
    rows.push_back(row(
        fmt::format("stage {} {}{}", action.stage, to_string(action.kind), is_receive(action.kind) ? " (wait)" : ""),
        action.time, time));
  }
  for (const RanksChange& ranks : change.ranks) {
    if (ranks.bubble.first || ranks.bubble.second)
      rows.push_back(share_row(fmt::format("stage {} {}", ranks.stage, idle), ranks.bubble));
    if (ranks.memory.first || ranks.memory.second)
      rows.push_back(row(fmt::format("stage {} peak memory", ranks.stage), ranks.memory, bytes));
  }
  std::string out =
      table_text({{.title = "", .left = true}, {.title = first}, {.title = second}, {.title = "change"}}, rows, screen);
  for (const ConditionChange& difference : change.differences)
    out += fmt::format("{}: {} and {}\n", difference.what, difference.first, difference.second);
  if (change.steps.first && change.steps.second)
    out +=
        fmt::format("measured: medians of {} and {}\n", *change.steps.first, count_text(*change.steps.second, "step"));
  if (change.drift) out += "drift from the first run to the second: the device was " + drift_text(*change.drift) + "\n";
  if (!change.no_drift.empty()) out += "drift unknown: " + change.no_drift + "\n";
  for (const std::string& reason : change.distrust) out += "not trusted: " + reason + "\n";
  return out;
}

}  // namespace stagecraft
