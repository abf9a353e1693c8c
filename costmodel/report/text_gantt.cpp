#include "costmodel/report/text_gantt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::report {
namespace {

constexpr int kMostRanks = 32;

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
