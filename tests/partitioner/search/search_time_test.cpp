#include "partitioner/search/search_time.h"

#include <gtest/gtest.h>

namespace stagecraft::partitioner {
namespace {

/// Whether something asks makes no difference as long as there is time.
TEST(SearchTime, IsNotUpWhileThereIsTime) {
  SearchTime time(Seconds(1e9));
  EXPECT_FALSE(time.is_up());
  EXPECT_FALSE(time.stop()());
  EXPECT_FALSE(time.was_cut_off());
}

/// Only what is needed is missed when it has to end. No time is left from the start.
TEST(SearchTime, RemembersWhetherSomethingNeededWasCutOff) {
  SearchTime time(Seconds(-1));
  EXPECT_FALSE(time.was_cut_off()) << "nothing asked yet";
  time.allow_some(1);
  EXPECT_TRUE(time.is_up());
  EXPECT_TRUE(time.stop()());
  EXPECT_FALSE(time.was_cut_off());
  time.allow(1, "bound");
  EXPECT_TRUE(time.stop()());
  EXPECT_TRUE(time.was_cut_off());
  time.allow_some(1);
  EXPECT_TRUE(time.was_cut_off()) << "it stays so";
}

TEST(SearchTime, TakesTheWordOfWhatWasLeftOut) {
  SearchTime time(Seconds(1e9));
  time.cut_off("bound");
  EXPECT_TRUE(time.was_cut_off());
  EXPECT_EQ(time.cut(), std::set<std::string>{"bound"});
}

/// Rounds of 3, 18 and 108 s, and what is left. Only the thread's own time counts, which hardly passes here.
TEST(SearchTime, HasRoundsThatGrowUntilNothingIsLeft) {
  SearchTime time(Seconds(1000));
  time.begin_rounds();
  EXPECT_NEAR(time.end().value, 1000, 0.1);
  EXPECT_FALSE(time.next_round()) << "nothing was cut off";
  for (const int round : {1, 2, 3}) {
    EXPECT_EQ(time.round(), round - 1);
    time.cut_off("bound");
    EXPECT_TRUE(time.next_round());
    EXPECT_FALSE(time.was_cut_off());
  }
  SearchTime brief(Seconds(2));
  brief.begin_rounds();
  brief.cut_off("bound");
  EXPECT_FALSE(brief.next_round()) << "the first round had all of the time";
}

}  // namespace
}  // namespace stagecraft::partitioner
