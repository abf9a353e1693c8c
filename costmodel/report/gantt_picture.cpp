#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/report/pictures.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::report {
namespace {

constexpr double kLeft = 150;
constexpr double kWide = 900;
constexpr double kRow = 22;
constexpr double kBar = 18;
constexpr int kMostRanks = 32;

std::optional<Fill> fill_of(ActionKind kind) {
  switch (traits_of(kind).look) {
    case ActionLook::Forward:
      return Fill::Forward;
    case ActionLook::Backward:
      return Fill::Backward;
    case ActionLook::WeightGradient:
      return Fill::WeightGradient;
    case ActionLook::Reduce:
      return Fill::Reduce;
    case ActionLook::Update:
      return Fill::Update;
    case ActionLook::Wait:
      return Fill::Wait;
    case ActionLook::Hidden:
      break;
  }
  return std::nullopt;
}

struct Bar {
  Fill fill = Fill::Forward;
  Seconds begin;
  Seconds end;
  std::string label;
  std::string tooltip;
  int joined = 1;
};

std::vector<int> shown_ranks(const std::vector<ShownStep>& steps) {
  std::vector<int> out;
  int ranks = 0;
  for (const ShownStep& step : steps) ranks = std::max(ranks, step.timeline->ranks);
  std::vector<int> stages;
  for (int rank = 0; rank < ranks; ++rank) {
    int stage = rank;
    for (const ShownStep& step : steps) {
      if (rank < to_int(step.timeline->stage_of_rank.size())) stage = step.timeline->stage_of_rank[to_index(rank)];
    }
    if (ranks > kMostRanks && std::ranges::find(stages, stage) != stages.end()) continue;
    stages.push_back(stage);
    if (to_int(out.size()) < kMostRanks) out.push_back(rank);
  }
  return out;
}

/// The bars of one rank in order of time, from the step's begin.
std::vector<Bar> bars_of(const ShownStep& step, int rank, Seconds pixel) {
  std::vector<Span> spans;
  for (const Span& span : step.timeline->spans) {
    if (span.rank == rank && fill_of(span.action.kind) && span.end > step.begin && span.start < step.end)
      spans.push_back(span);
  }
  std::ranges::stable_sort(spans, [](const Span& a, const Span& b) { return a.start < b.start; });
  std::vector<Bar> out;
  for (const Span& span : spans) {
    Bar bar;
    bar.fill = *fill_of(span.action.kind);
    bar.begin = std::max(span.start, step.begin, std::less<>()) - step.begin;
    bar.end = std::min(span.end, step.end, std::less<>()) - step.begin;
    if (bar.fill == Fill::Wait && bar.end - bar.begin < 0.5 * pixel) continue;
    if (span.action.microbatch >= 0 && bar.fill != Fill::Wait) bar.label = std::to_string(span.action.microbatch);
    bar.tooltip = std::string(to_string(span.action.kind)) + " of stage " + std::to_string(span.action.stage);
    if (span.action.microbatch >= 0) bar.tooltip += ", microbatch " + std::to_string(span.action.microbatch);
    bar.tooltip += ", " + format_seconds(span.end - span.start) + " from " + format_seconds(bar.begin);
    if (!out.empty() && out.back().fill == bar.fill && bar.begin - out.back().end < 0.5 * pixel &&
        bar.end - bar.begin < 1.5 * pixel && out.back().end - out.back().begin < 40 * pixel) {
      Bar& last = out.back();
      last.end = bar.end;
      last.label.clear();
      last.tooltip = fmt::format("{} actions, {} from {}", ++last.joined, format_seconds(last.end - last.begin),
                                 format_seconds(last.begin));
      continue;
    }
    out.push_back(std::move(bar));
  }
  return out;
}

}  // namespace

ShownStep shown_step(const Prediction& prediction) {
  const Timeline& timeline = prediction.timeline;
  if (timeline.steps.empty()) return {"predicted", &timeline, Seconds(0), prediction.iteration};
  const StepTime& last = timeline.steps.back();
  return {"predicted", &timeline, last.start, last.end};
}

std::optional<ShownStep> shown_step(const Measurement& measurement, std::size_t skip) {
  const std::vector<StepTime>& steps = measurement.timeline.steps;
  if (steps.empty()) return std::nullopt;
  std::map<int, bool> has_spans;
  for (const Span& span : measurement.timeline.spans) has_spans[span.step] = true;
  std::vector<const StepTime*> candidates;
  for (std::size_t i = std::min(skip, steps.size() - 1); i < steps.size(); ++i) {
    if (has_spans.contains(steps[i].step)) candidates.push_back(&steps[i]);
  }
  if (candidates.empty()) return std::nullopt;
  const Seconds middle = step_time(measurement.timeline, std::min(skip, steps.size() - 1));
  const auto distance = [&](const StepTime* step) { return std::abs((step->end - step->start - middle).value); };
  const StepTime* const nearest =
      *std::ranges::min_element(candidates, [&](const auto* a, const auto* b) { return distance(a) < distance(b); });
  return ShownStep{fmt::format("measured, step {}", nearest->step), &measurement.timeline, nearest->start,
                   nearest->end};
}

Picture gantt_picture(const std::string& name, const std::vector<ShownStep>& steps) {
  Drawing out(name, "Pipeline timeline");
  Seconds longest;
  for (const ShownStep& step : steps) longest = std::max(longest, step.end - step.begin, std::less<>());
  const Axis axis = time_axis(longest, 8);
  const auto x = [&](Seconds time) { return kLeft + kWide * time.value / axis.end; };
  const Seconds pixel(axis.end / kWide);
  const std::vector<int> ranks = shown_ranks(steps);
  const double group = kRow * static_cast<double>(steps.size()) + 8;

  double y = 12;
  std::vector<std::pair<std::string, std::string>> entries;
  std::set<Fill> seen;
  for (const ShownStep& step : steps) {
    for (const Span& span : step.timeline->spans) {
      if (const auto fill = fill_of(span.action.kind)) seen.insert(*fill);
    }
  }
  for (const auto& [fill, words] :
       std::initializer_list<std::pair<Fill, const char*>>{{Fill::Forward, "forward"},
                                                           {Fill::Backward, "backward"},
                                                           {Fill::WeightGradient, "weight gradient"},
                                                           {Fill::Reduce, "gradient all-reduce"},
                                                           {Fill::Update, "update"},
                                                           {Fill::Wait, "waiting for a message"}}) {
    if (seen.contains(fill)) entries.emplace_back(out.fill(fill), words);
  }
  y += out.legend(kLeft, y, kWide, entries);
  y += 6;
  const double top = y;
  const double bottom = top + group * static_cast<double>(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); r += 2)
    out.rect(0, top + group * static_cast<double>(r), kLeft + kWide + 20, group, "class=\"band\"");
  out.clip(kLeft, top, kWide, bottom - top + 20);
  out.open(fmt::format("class=\"zoomable\" clip-path=\"url(#{}-clip)\" data-left=\"{}\" data-width=\"{}\"", name, kLeft,
                       kWide));
  for (const double tick : axis.ticks) out.line(x(Seconds(tick)), top, x(Seconds(tick)), bottom, "grid");
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const double at = top + group * static_cast<double>(r) + 4 + kRow * static_cast<double>(s);
      for (const Bar& bar : bars_of(steps[s], ranks[r], pixel)) {
        const double width = x(bar.end) - x(bar.begin);
        const bool waits = bar.fill == Fill::Wait;
        out.rect(x(bar.begin), at + (waits ? 6 : 2), width, waits ? kBar - 8 : kBar, out.fill(bar.fill), bar.tooltip,
                 "class=\"bar\"" + (bar.label.empty() ? "" : " data-m=\"" + bar.label + "\""));
        if (!bar.label.empty() && width >= text_width(bar.label, 11) + 3)
          out.text((x(bar.begin) + x(bar.end)) / 2, at + 15, "middle", bar.label, "dark", 11);
      }
    }
  }
  out.close();
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const double at = top + group * static_cast<double>(r) + 4;
    const Timeline& timeline = *steps.front().timeline;
    const int stage =
        ranks[r] < to_int(timeline.stage_of_rank.size()) ? timeline.stage_of_rank[to_index(ranks[r])] : ranks[r];
    const std::string rank = timeline.ranks > to_int(timeline.stage_of_rank.size()) || stage != ranks[r]
                                 ? fmt::format("stage {}, rank {}", stage, ranks[r])
                                 : fmt::format("stage {}", stage);
    const bool single = steps.size() == 1;
    out.text(12, at + (single ? 15 : kRow * static_cast<double>(steps.size()) / 2 + 4), "start",
             fitted(rank, single ? kLeft - 20 : 64, 11), "strong");
    for (std::size_t s = 0; s < steps.size() && !single; ++s) {
      const std::string first = steps[s].title.substr(0, steps[s].title.find(','));
      out.text(kLeft - 8, at + 15 + kRow * static_cast<double>(s), "end", fitted(first, 64, 10), "soft", 10);
    }
  }
  for (const ShownStep& step : steps) {
    const double end = x(step.end - step.begin);
    out.line(end, top, end, bottom, "axis endmark");
  }
  out.line(kLeft, bottom, kLeft + kWide, bottom, "axis");
  out.open("class=\"timeaxis\" data-end=\"" + fmt::format("{:.9g}", axis.end / axis.factor) + "\"");
  for (const double tick : axis.ticks) out.text(x(Seconds(tick)), bottom + 16, "middle", axis.label(tick), "soft");
  out.close();
  out.text(kLeft + kWide / 2, bottom + 34, "middle", "time since the step began, " + axis.unit, "ink");

  std::string caption;
  for (const ShownStep& step : steps) {
    caption += (caption.empty() ? "" : "; ") + step.title + ": " + format_seconds(step.end - step.begin);
  }
  caption = "One step of each rank; numbers are microbatches, empty is idle. " + caption + ".";
  int all = 0;
  for (const ShownStep& step : steps) all = std::max(all, step.timeline->ranks);
  if (to_int(ranks.size()) < all) caption += fmt::format(" {} of {} ranks are drawn.", ranks.size(), all);
  Picture picture = out.finish(kLeft + kWide + 30, bottom + 46, caption);
  picture.zooms = true;
  return picture;
}

namespace {

struct Sign {
  char first = '.';
  char rest = '.';
  const char* colour = "";
};

Sign sign_of(ActionKind kind) {
  switch (traits_of(kind).look) {
    case ActionLook::Forward:
      return {'F', '-', "\x1b[36m"};
    case ActionLook::Backward:
      return {'B', '=', "\x1b[33m"};
    case ActionLook::WeightGradient:
      return {'W', '+', "\x1b[93m"};
    case ActionLook::Reduce:
      return {'R', 'R', "\x1b[35m"};
    case ActionLook::Update:
      return {'U', 'U', "\x1b[32m"};
    case ActionLook::Wait:
      return {'~', '~', "\x1b[90m"};
    case ActionLook::Hidden:
      break;
  }
  return {};
}

/// For each column of `length` in all, the index in the timeline's spans of what takes most of it; -1: idle.
std::vector<int> columns_of(const ShownStep& step, int rank, int columns, Seconds length) {
  std::vector<int> out(to_index(columns), -1);
  std::vector<double> most(to_index(columns), 0);
  const double per = length.value / columns;
  if (!(per > 0)) return out;
  // Work hides waiting: a message is on its way while the rank computes.
  for (const bool work : {true, false}) {
    std::vector<bool> taken(to_index(columns));
    for (int c = 0; c < columns; ++c) taken[to_index(c)] = !work && out[to_index(c)] >= 0;
    for (std::size_t i = 0; i < step.timeline->spans.size(); ++i) {
      const Span& span = step.timeline->spans[i];
      const Sign sign = sign_of(span.action.kind);
      if (span.rank != rank || sign.first == '.' || (sign.first != '~') != work) continue;
      const double begin = (span.start - step.begin).value / per;
      const double end = (std::min(span.end, step.end) - step.begin).value / per;
      for (int c = std::max(0, static_cast<int>(std::floor(begin))); c < columns && c < end; ++c) {
        const double part = std::min(end, c + 1.0) - std::max<double>(begin, c);
        // Less than a third of a column is no more than rounding, unless nothing else is there to show.
        if (taken[to_index(c)] || part <= most[to_index(c)] + 1e-9 || part < 1.0 / 3) continue;
        most[to_index(c)] = part;
        out[to_index(c)] = to_int(i);
      }
    }
  }
  return out;
}

}  // namespace

std::string text_gantt(const ShownStep& step, int width, bool colour, Seconds axis) {
  const Seconds length = std::max(step.end - step.begin, axis);
  const Timeline& timeline = *step.timeline;
  std::vector<int> ranks;
  std::set<int> stages;
  for (int rank = 0; rank < timeline.ranks && to_int(ranks.size()) < kMostRanks; ++rank) {
    const int stage = rank < to_int(timeline.stage_of_rank.size()) ? timeline.stage_of_rank[to_index(rank)] : rank;
    if (stages.insert(stage).second || timeline.ranks <= kMostRanks) ranks.push_back(rank);
  }
  const auto label = [&](int rank) {
    const int stage = rank < to_int(timeline.stage_of_rank.size()) ? timeline.stage_of_rank[to_index(rank)] : rank;
    return fmt::format("rank {} (stage {})", rank, stage);
  };
  std::size_t longest = 0;
  for (const int rank : ranks) longest = std::max(longest, label(rank).size());
  const int columns = std::max(20, std::max(40, width) - to_int(longest) - 3);
  std::string out;
  std::set<char> used;
  for (const int rank : ranks) {
    out += label(rank) + std::string(longest - label(rank).size(), ' ') + " |";
    const std::vector<int> at = columns_of(step, rank, columns, length);
    for (std::size_t c = 0; c < at.size();) {
      std::size_t end = c + 1;
      while (end < at.size() && at[end] == at[c]) ++end;
      std::string bar(end - c, '.');
      Sign sign;
      if (at[c] >= 0) {
        const Action& action = timeline.spans[to_index(at[c])].action;
        sign = sign_of(action.kind);
        bar.assign(end - c, sign.rest);
        bar[0] = sign.first;
        const std::string number = action.microbatch >= 0 ? std::to_string(action.microbatch) : "";
        if (sign.first != '~' && number.size() < bar.size()) bar.replace(1, number.size(), number);
      }
      used.insert(sign.first);
      out += colour && at[c] >= 0 ? sign.colour + bar + "\x1b[0m" : bar;
      c = end;
    }
    out += "|\n";
  }
  const std::string whole = format_seconds(length);
  const std::string half = format_seconds(length / 2);
  std::string scale = "0";
  scale.resize(std::max<std::size_t>(scale.size(), to_index(columns) / 2 - half.size() / 2), ' ');
  scale += half;
  scale.resize(std::max(scale.size(), to_index(columns) - whole.size()), ' ');
  out += std::string(longest + 2, ' ') + scale + whole + "\n";
  std::string words;
  for (const auto& [sign, word] : std::initializer_list<std::pair<char, const char*>>{{'F', "F forward"},
                                                                                      {'B', "B backward"},
                                                                                      {'W', "W weight gradient"},
                                                                                      {'R', "R all-reduce"},
                                                                                      {'U', "U update"},
                                                                                      {'~', "~ waiting for a message"},
                                                                                      {'.', ". idle"}}) {
    if (!used.contains(sign)) continue;
    const bool fits = words.empty() || words.size() - (words.rfind('\n') + 1) + 2 + std::string(word).size() <=
                                           to_index(std::max(40, width));
    words += words.empty() ? "" : fits ? ", " : "\n";
    words += word;
  }
  out += words + "\n";
  if (to_int(ranks.size()) < timeline.ranks)
    out += fmt::format("{} of {} ranks are shown, the first of each stage\n", ranks.size(), timeline.ranks);
  return out;
}

std::string text_gantts(const std::vector<ShownStep>& steps, int width, bool colour) {
  Seconds longest;
  for (const ShownStep& step : steps) longest = std::max(longest, step.end - step.begin);
  std::string out;
  for (const ShownStep& step : steps) {
    out += (out.empty() ? "" : "\n") + step.title + ":\n" + text_gantt(step, width, colour, longest);
  }
  return out;
}

}  // namespace stagecraft::report
