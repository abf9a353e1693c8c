#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "executor/launch/spawn.h"
#include "tests/support/gpu.h"
#include "tests/support/places.h"

// The NCCL channel over the real library. Ranks are processes that share one GPU, each as if on a separate host:
// transfers go through the host, but calls, streams and events are those of any run.

namespace stagecraft::channel {
namespace {

std::string rank_program() { return program_folder() + "/nccl_rank_program"; }

class NcclOnAGpu : public GpuTest {
 protected:
  static int run(int ranks, const std::string& name) {
    return launch::spawn({ranks, {rank_program(), name}, {}}, std::chrono::seconds(10));
  }
};

// Needs no GPU.
TEST(NcclRankProgram, IsNextToThisTest) { EXPECT_TRUE(std::filesystem::exists(rank_program())) << rank_program(); }

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
