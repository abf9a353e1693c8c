#include "executor/launch/exit_status.h"

#include <gtest/gtest.h>

namespace stagecraft {
namespace {

TEST(ExitStatus, TellsACauseOfItsOwnFromAPeersAndADeadline) {
  using Cause = PeerError::Cause;
  EXPECT_EQ(exit_status(PeerError("a shape", Cause::Found)), 1);
  EXPECT_EQ(exit_status(PeerError("lost rank 1", Cause::Peer)), 3);
  EXPECT_EQ(exit_status(PeerError("late", Cause::Deadline).within("rank 0: ", ", at a barrier")), 4);
}

}  // namespace
}  // namespace stagecraft
