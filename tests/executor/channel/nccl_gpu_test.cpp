#include <gtest/gtest.h>

#include <chrono>

#include "executor/launch/spawn.h"
#include "tests/support/gpu.h"

// The NCCL channel over the real library. Ranks are processes that share one GPU, each as if on a separate host:
// transfers go through the host, but calls, streams and events are those of any run.

namespace stagecraft::channel {
namespace {

class NcclOnAGpu : public GpuTest {
 protected:
  static int run(int ranks, const std::string& name) {
    return launch::spawn(ranks, {std::string(STAGECRAFT_BIN_DIR) + "/nccl_rank_program", name},
                         std::chrono::seconds(10));
  }
};

TEST_F(NcclOnAGpu, DeliversEverythingWithTwoAndFourRanks) {
  EXPECT_EQ(run(2, "deliveries"), 0);
  EXPECT_EQ(run(4, "deliveries"), 0);
}

TEST_F(NcclOnAGpu, SumsWithTwoAndFourRanks) {
  EXPECT_EQ(run(2, "sums"), 0);
  EXPECT_EQ(run(4, "sums"), 0);
  EXPECT_EQ(run(4, "deterministic"), 0);
}

TEST_F(NcclOnAGpu, OrdersItsStreams) { EXPECT_EQ(run(2, "streams"), 0); }

TEST_F(NcclOnAGpu, EndsATransferThatIsLate) { EXPECT_EQ(run(2, "late"), 0); }

TEST_F(NcclOnAGpu, PrintsTheHostTimeOfAMessage) { EXPECT_EQ(run(2, "host-time"), 0); }

TEST_F(NcclOnAGpu, TransfersWhileItComputes) { EXPECT_EQ(run(2, "overlap"), 0); }

}  // namespace
}  // namespace stagecraft::channel
