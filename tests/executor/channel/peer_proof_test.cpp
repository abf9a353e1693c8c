#include "executor/channel/peer_proof.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/channel/control_tags.h"
#include "tests/executor/channel/channel_suite.h"

namespace stagecraft::channel {
namespace {

TEST(PeerProof, AcceptsPeersThatKnowTheKey) {
  run_on_ranks("local", 3, kLong, [](Channel& channel) { prove_to_each_other(channel, "key"); });
}

TEST(PeerProof, NamesWhoDoesNotKnowTheKey) {
  run_on_ranks("local", 3, kLong, [](Channel& channel) {
    const bool stranger = channel.rank() == 1;
    const std::string error = error_of([&] { prove_to_each_other(channel, stranger ? "guess" : "key"); });
    if (!stranger) {
      EXPECT_EQ(error, "rank " + std::to_string(channel.rank()) +
                           ": the peer that connected as rank 1 does not know the run's secret");
    }
  });
}

TEST(PeerProof, IsNotFooledByItsOwnWords) {
  // The stranger knows no key and echoes whatever it receives.
  run_on_ranks("local", 2, kLong, [](Channel& channel) {
    if (channel.rank() == 0) {
      EXPECT_EQ(error_of([&] { prove_to_each_other(channel, "key"); }),
                "rank 0: the peer that connected as rank 1 does not know the run's secret");
      return;
    }
    for (int message = 0; message < 2; ++message) {
      const at::Tensor heard = channel.receive({{64}, at::kByte}, 0, kProofTag)->wait();
      channel.send(heard.clone(), 0, kProofTag)->wait();
    }
  });
}

TEST(PeerProof, AlsoTellsTheStrangerThatItsKeyIsWrong) {
  run_on_ranks("local", 2, kLong, [](Channel& channel) {
    const std::string error = error_of([&] { prove_to_each_other(channel, channel.rank() == 1 ? "guess" : "key"); });
    EXPECT_THAT(error, ::testing::HasSubstr("connected as rank " + std::to_string(1 - channel.rank())));
  });
}

TEST(PeerProof, NeedsNoPeerForOneRank) {
  run_on_ranks("local", 1, kLong, [](Channel& channel) { prove_to_each_other(channel, "key"); });
}

}  // namespace
}  // namespace stagecraft::channel
