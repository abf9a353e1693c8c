#include "executor/launch/rendezvous.h"

#include <gtest/gtest.h>

namespace stagecraft::launch {
namespace {

TEST(ExitStatus, DistinguishesOwnFailuresFromPeersAndDeadlines) {
  using Cause = meeting::PeerError::Cause;
  EXPECT_EQ(exit_status(meeting::PeerError("a shape", Cause::Found)), 1);
  EXPECT_EQ(exit_status(meeting::PeerError("lost rank 1", Cause::Peer)), 3);
  EXPECT_EQ(exit_status(meeting::PeerError("late", Cause::Deadline).within("rank 0: ", ", at a barrier")), 4);
}

}  // namespace
}  // namespace stagecraft::launch
