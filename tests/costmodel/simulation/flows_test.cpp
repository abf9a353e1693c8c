#include "costmodel/simulation/flows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace stagecraft::simulation {
namespace {

TEST(Flows, EndInTheOrderOfTheirEnds) {
  Flows flows;
  const int longer = flows.start({}, Seconds(3));
  const int shorter = flows.start({}, Seconds(1));
  EXPECT_EQ(flows.next(), shorter);
  EXPECT_EQ(flows.now(), Seconds(1));
  EXPECT_EQ(flows.next(), longer);
  EXPECT_EQ(flows.now(), Seconds(3));
  EXPECT_EQ(flows[longer].started, Seconds(0));
  EXPECT_EQ(flows.next(), -1);
  EXPECT_EQ(flows.now(), Seconds(3));
}

TEST(Flows, ThatEndTogetherEndInTheOrderInWhichTheirEndsWereSet) {
  Flows flows;
  const int first = flows.start({}, Seconds(2));
  const int second = flows.start({}, Seconds(2));
  const int third = flows.start({}, Seconds(4));
  flows.set_rate(first, 0.5);  // ends at 4, like the third, but this was set later
  EXPECT_EQ(flows.next(), second);
  EXPECT_TRUE(flows.is_moment_over());
  EXPECT_EQ(flows.next(), third);
  EXPECT_FALSE(flows.is_moment_over());
  EXPECT_EQ(flows.next(), first);
  EXPECT_TRUE(flows.is_moment_over());
}

TEST(Flows, GoOnAtANewRateWithWhatIsLeft) {
  Flows flows;
  const int slowed = flows.start({}, Seconds(4));
  flows.start({}, Seconds(1));
  flows.next();
  flows.set_rate(slowed, 0.5);  // 3 s are left and take 6
  EXPECT_EQ(flows[slowed].remaining, Seconds(3));
  flows.start({}, Seconds(2));
  flows.next();
  EXPECT_EQ(flows.now(), Seconds(3));
  flows.set_rate(slowed, 2);  // 2 s are left and take 1
  EXPECT_EQ(flows.next(), slowed);
  EXPECT_EQ(flows.now(), Seconds(4));
}

TEST(Flows, ShareAPortEqually) {
  // 1 and 3 s at half the rate: the short one ends at 2 s, when the long one has 2 s left for itself.
  Flows flows(1);
  const int longer = flows.start({}, Seconds(3), {0, -1});
  const int shorter = flows.start({}, Seconds(1), {-1, 0});
  EXPECT_EQ(flows.next(), shorter);
  EXPECT_EQ(flows.now(), Seconds(2));
  EXPECT_EQ(flows.next(), longer);
  EXPECT_EQ(flows.now(), Seconds(4));
}

TEST(Flows, MoveAtTheSmallerShareOfTheirTwoPorts) {
  Flows flows(2);
  const int both = flows.start({}, Seconds(1), {0, 1});
  const int out = flows.start({}, Seconds(1), {0, -1});
  const int in = flows.start({}, Seconds(1), {-1, 1});
  EXPECT_EQ(flows[both].rate, 0.5);
  const int third = flows.start({}, Seconds(1), {-1, 1});
  EXPECT_EQ(flows[both].rate, 1.0 / 3);
  EXPECT_EQ(flows[out].rate, 0.5);
  EXPECT_EQ(flows[in].rate, 1.0 / 3);
  EXPECT_EQ(flows[third].rate, 1.0 / 3);
  EXPECT_EQ(flows.next(), out);  // at 2 s; the others are limited by port 1
  EXPECT_EQ(flows[both].rate, 1.0 / 3);
}

TEST(Flows, ThatAreCancelledDoNotEndAndLeaveTheirNumbers) {
  Flows flows;
  const int cancelled = flows.start({}, Seconds(1));
  const int other = flows.start({}, Seconds(2));
  flows.cancel(cancelled);
  const int next = flows.start({}, Seconds(3));
  EXPECT_EQ(next, cancelled);
  EXPECT_EQ(flows.next(), other);
  EXPECT_EQ(flows.now(), Seconds(2));
  EXPECT_EQ(flows.next(), next);
  EXPECT_EQ(flows.now(), Seconds(3));
}

TEST(Flows, WhoseRatesChangeOftenEndOnce) {
  // A thousand changes of one flow while another one, which is never changed, ends first.
  Flows flows;
  const int changed = flows.start({}, Seconds(100));
  const int other = flows.start({}, Seconds(1));
  for (int i = 0; i < 500; ++i) {
    flows.set_rate(changed, 0.5);
    flows.set_rate(changed, 1);
  }
  EXPECT_EQ(flows.next(), other);
  EXPECT_EQ(flows.next(), changed);
  EXPECT_EQ(flows.now(), Seconds(100));
  EXPECT_EQ(flows.next(), -1);
}

TEST(Flows, AreVisitedInTheOrderOfTheirEnds) {
  Flows flows;
  const int slowed = flows.start({}, Seconds(1));
  flows.start({}, Seconds(3));
  flows.cancel(flows.start({}, Seconds(2)));
  flows.set_rate(slowed, 0.25);
  std::vector<double> ends;
  flows.visit_in_order([&](const Flow&, Seconds end) { ends.push_back(end.value); });
  EXPECT_EQ(ends, (std::vector<double>{3, 4}));
}

TEST(FlowEnds, ComeInOrder) {
  const unsigned seed = 4;
  std::mt19937 random(seed);
  FlowEnds heap;
  std::vector<FlowEnd> expected;  // sorted, the last one first
  std::uint64_t event = 0;
  for (int i = 0; i < 5000; ++i) {
    // Few times, so that many are equal.
    if (expected.empty() || random() % 2 == 0 || (i < 3000 && random() % 2 == 0)) {
      const FlowEnd end{Seconds(static_cast<double>(random() % 50)), ++event, i};
      heap.push(end);
      expected.insert(
          std::upper_bound(expected.begin(), expected.end(), end, [](const auto& a, const auto& b) { return b < a; }),
          end);
    } else {
      ASSERT_EQ(heap.first().event, expected.back().event) << "seed " << seed << " step " << i;
      heap.pop();
      expected.pop_back();
    }
    ASSERT_EQ(heap.is_empty(), expected.empty());
  }
}

}  // namespace
}  // namespace stagecraft::simulation
