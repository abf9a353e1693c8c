#include "costmodel/simulation/rank_spans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace stagecraft::simulation {
namespace {

/// A span of that rank and start; `number` tells equal ones apart.
Span span(int rank, double start, int number) {
  return {rank, 0, {ActionKind::Forward, 0, number, -1}, Seconds(start), Seconds(start + 1)};
}

std::vector<std::vector<Action>> lists_of(const std::vector<std::size_t>& entries) {
  std::vector<std::vector<Action>> out;
  for (const std::size_t count : entries) out.emplace_back(count);
  return out;
}

TEST(RankSpans, AreOrderedByRankAndStart) {
  RankSpans spans(lists_of({2, 3}));
  for (const Span& added : {span(1, 4, 0), span(0, 2, 1), span(1, 3, 2), span(0, 1, 3), span(1, 0, 4)})
    spans.add(added);
  EXPECT_EQ(spans.take(), (std::vector{span(0, 1, 3), span(0, 2, 1), span(1, 0, 4), span(1, 3, 2), span(1, 4, 0)}));
}

TEST(RankSpans, OfEqualStartsStayInTheOrderInWhichTheyCame) {
  RankSpans spans(lists_of({4}));
  for (const Span& added : {span(0, 1, 0), span(0, 1, 1), span(0, 0, 2), span(0, 1, 3)}) spans.add(added);
  EXPECT_EQ(spans.take(), (std::vector{span(0, 0, 2), span(0, 1, 0), span(0, 1, 1), span(0, 1, 3)}));
}

TEST(RankSpans, MayBeFewerOrMoreThanTheListsHaveEntries) {
  RankSpans spans(lists_of({3, 1, 0}));
  for (const Span& added : {span(0, 1, 0), span(1, 2, 1), span(1, 1, 2), span(2, 0, 3)}) spans.add(added);
  EXPECT_EQ(spans.take(), (std::vector{span(0, 1, 0), span(1, 1, 2), span(1, 2, 1), span(2, 0, 3)}));
}

TEST(RankSpans, AreThoseOfAStableSort) {
  const unsigned seed = 8;
  std::mt19937 random(seed);
  for (int i = 0; i < 200; ++i) {
    const std::vector<std::size_t> entries{random() % 100, random() % 100, random() % 100};
    RankSpans spans(lists_of(entries));
    std::vector<Span> expected;
    const int count = static_cast<int>(random() % 300);
    // From almost in order to in no order.
    const auto disorder = 1 + random() % (i % 2 == 0 ? 4 : 400);
    for (int number = 0; number < count; ++number) {
      expected.push_back(span(static_cast<int>(random() % 3), number + static_cast<int>(random() % disorder), number));
      spans.add(expected.back());
    }
    std::stable_sort(expected.begin(), expected.end(), [](const Span& a, const Span& b) {
      return a.rank != b.rank ? a.rank < b.rank : a.start < b.start;
    });
    ASSERT_EQ(spans.take(), expected) << "seed " << seed << " case " << i;
  }
}

}  // namespace
}  // namespace stagecraft::simulation
