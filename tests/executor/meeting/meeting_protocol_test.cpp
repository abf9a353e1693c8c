#include "executor/meeting/meeting_protocol.h"

#include <gtest/gtest.h>

#include <set>

namespace stagecraft::meeting {
namespace {

TEST(MeetingProtocol, ProofsOfBothSidesAreTheSameForTheSameWords) {
  EXPECT_EQ(client_proof("key", "1", "a", "b"), client_proof("key", "1", "a", "b"));
  EXPECT_EQ(server_proof("key", "a", "b"), server_proof("key", "a", "b"));
}

TEST(MeetingProtocol, NoProofServesInsteadOfAnother) {
  // A different key, rank, nonce of either side, and the other direction.
  const std::set<std::string> proofs{client_proof("key", "1", "a", "b"), client_proof("other", "1", "a", "b"),
                                     client_proof("key", "2", "a", "b"), client_proof("key", "1", "c", "b"),
                                     client_proof("key", "1", "a", "c"), client_proof("key", "1", "b", "a"),
                                     server_proof("key", "a", "b"),      server_proof("key", "b", "a"),
                                     server_proof("other", "a", "b"),    server_proof("key", "a", "c")};
  EXPECT_EQ(proofs.size(), 10U);
}

}  // namespace
}  // namespace stagecraft::meeting
