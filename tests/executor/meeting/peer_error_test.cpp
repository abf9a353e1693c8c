#include "executor/meeting/peer_error.h"

#include <gtest/gtest.h>

namespace stagecraft::meeting {
namespace {

TEST(PeerErrorText, IsWrappedAndKeepsItsCause) {
  using Cause = PeerError::Cause;
  for (const Cause cause : {Cause::Found, Cause::Deadline, Cause::Peer}) {
    const PeerError error = PeerError("no route", cause).within("rank 1: ", ", at a barrier");
    EXPECT_STREQ(error.what(), "rank 1: no route, at a barrier");
    EXPECT_EQ(error.cause(), cause);
  }
  EXPECT_EQ(PeerError("no route").cause(), Cause::Found);
}

TEST(NameRanks, SaysRankOrRanks) {
  EXPECT_EQ(name_ranks({2}), "rank 2");
  EXPECT_EQ(name_ranks({2, 3, 5}), "ranks 2, 3, 5");
}

TEST(SecondsText, HasTenthsOfASecond) {
  EXPECT_EQ(seconds_text(std::chrono::milliseconds(5000)), "5.0 s");
  EXPECT_EQ(seconds_text(std::chrono::milliseconds(340)), "0.3 s");
  EXPECT_EQ(seconds_text(std::chrono::minutes(2)), "120.0 s");
}

}  // namespace
}  // namespace stagecraft::meeting
