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
  time.allow(1);
  EXPECT_TRUE(time.stop()());
  EXPECT_TRUE(time.was_cut_off());
  time.allow_some(1);
  EXPECT_TRUE(time.was_cut_off()) << "it stays so";
}

TEST(SearchTime, TakesTheWordOfWhatWasLeftOut) {
  SearchTime time(Seconds(1e9));
  time.cut_off();
  EXPECT_TRUE(time.was_cut_off());
}

}  // namespace
}  // namespace stagecraft::partitioner
