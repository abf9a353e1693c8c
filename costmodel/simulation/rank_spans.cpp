#include "costmodel/simulation/rank_spans.h"

#include <algorithm>
#include <span>

namespace stagecraft::simulation {
namespace {

/// Sorts like std::stable_sort by start, and is fast for spans that are almost in order.
void sort_by_start(std::span<Span> spans) {
  std::size_t moves = 8 * spans.size();
  for (std::size_t i = 1; i < spans.size(); ++i) {
    if (!(spans[i].start < spans[i - 1].start)) continue;
    const Span span = spans[i];
    std::size_t place = i;
    for (; place > 0 && span.start < spans[place - 1].start && moves > 0; --place, --moves)
      spans[place] = spans[place - 1];
    spans[place] = span;
    if (moves > 0) continue;
    std::ranges::stable_sort(spans, {}, &Span::start);
    return;
  }
}

}  // namespace

RankSpans::RankSpans(const std::vector<std::vector<Action>>& lists) {
  std::size_t begin = 0;
  for (const std::vector<Action>& list : lists) {
    regions_.push_back({begin, begin, begin + list.size()});
    begin += list.size();
  }
  spans_.resize(begin);
}

std::vector<Span> RankSpans::take() {
  std::size_t end = 0;
  for (const Region& region : regions_) {
    sort_by_start(std::span(spans_).subspan(region.begin, region.end - region.begin));
    const auto first = spans_.begin() + static_cast<std::ptrdiff_t>(region.begin);
    if (region.begin > end)
      std::copy_n(first, region.end - region.begin, spans_.begin() + static_cast<std::ptrdiff_t>(end));
    end += region.end - region.begin;
  }
  spans_.resize(end);
  if (!more_.empty()) {
    spans_.insert(spans_.end(), more_.begin(), more_.end());
    std::ranges::stable_sort(
        spans_, [](const Span& a, const Span& b) { return a.rank != b.rank ? a.rank < b.rank : a.start < b.start; });
  }
  regions_.clear();
  more_.clear();
  return std::move(spans_);
}

}  // namespace stagecraft::simulation
