#include "partitioner/command/shown_search.h"

#include <gtest/gtest.h>

namespace stagecraft::partitioner {
namespace {

TEST(ProgressText, OfALimitedSearchSaysHowGoodThePlanIs) {
  SearchState state;
  EXPECT_EQ(progress_text(state), "");
  state.search = "optimal";
  state.passed = 1.23_s;
  state.limit = 3_s;
  EXPECT_EQ(progress_text(state), "optimal: 1.2 of 3 s");
  state.best = 12.3_ms;
  EXPECT_EQ(progress_text(state), "optimal: 1.2 of 3 s, best step 12.3 ms");
  state.lower_bound = 12_ms;  // 12.3 / 12 = 1.025
  state.predicted = 812;
  EXPECT_EQ(progress_text(state), "optimal: 1.2 of 3 s, best step 12.3 ms, gap at most 2.5 %, 812 plans predicted");
  state.part = "zb-h1 (2 of 6)";
  state.simulated = 0.5;
  EXPECT_EQ(progress_text(state),
            "zb-h1 (2 of 6): optimal: 1.2 of 3 s, best step 12.3 ms, gap at most 2.5 %, simulating a plan: 50 %, "
            "812 plans predicted");
}

// 10 of 40 took 5 s, so the other 30 take 15 s.
TEST(ProgressText, OfASearchWithoutLimitSaysWhatIsLeft) {
  SearchState state;
  state.search = "auto";
  state.passed = 5_s;
  state.all = 40;
  EXPECT_EQ(progress_text(state), "auto: 5 s, 0 of 40");
  state.done = 10;
  EXPECT_EQ(progress_text(state), "auto: 5 s, 10 of 40, 15 s left");
  state.limit = 60_s;
  EXPECT_EQ(progress_text(state), "auto: 5 s of 1 min 0 s, 10 of 40");
}

TEST(ProgressText, IsOnlyTheTimeWhereNothingElseIsKnown) {
  SearchState state;
  state.search = "pipedream";
  state.passed = 75_s;
  EXPECT_EQ(progress_text(state), "pipedream: 1 min 15 s");
}

}  // namespace
}  // namespace stagecraft::partitioner
