#include "executor/channel/channel.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/executor/channel/channel_suite.h"

namespace stagecraft::channel {
namespace {

TEST(RankSubset, IsAChannelOfItsOwnRanks) {
  run_on_ranks("local", 5, kLong, [](Channel& whole) {
    if (whole.rank() % 2 == 1) return;
    RankSubset subset(whole, {0, 2, 4});
    EXPECT_EQ(subset.rank(), whole.rank() / 2);
    EXPECT_EQ(subset.ranks(), 3);
    // Round the ring: each gets the number of the rank before it.
    const int next = (subset.rank() + 1) % 3, before = (subset.rank() + 2) % 3;
    auto receiving = subset.receive({{1}, at::kFloat}, before, 7);
    subset.send(at::full({1}, static_cast<float>(subset.rank())), next, 7)->wait();
    EXPECT_EQ(receiving->wait().item<float>(), static_cast<float>(before));
    at::Tensor values = at::full({10}, static_cast<float>(1 << whole.rank()));
    if (subset.rank() == 1) return;
    subset.start({.kind = Collective::AllReduce, .values = values, .members = {0, 2}, .tag = 8})->wait();
    EXPECT_TRUE(values.equal(at::full({10}, 17.0F)));  // of ranks 0 and 4: 1 + 16
    at::Tensor gathered = at::full({10}, static_cast<float>(whole.rank()));
    subset.start({.kind = Collective::AllGather, .values = gathered, .members = {0, 2}, .tag = 8, .counts = {3, 7}})
        ->wait();
    EXPECT_TRUE(gathered.narrow(0, 0, 3).equal(at::full({3}, 0.0F)));
    EXPECT_TRUE(gathered.narrow(0, 3, 7).equal(at::full({7}, 4.0F)));
  });
}

TEST(RankSubset, NobodyLeavesItsBarrierBeforeAllHaveArrived) {
  std::atomic<int> came = 0;
  run_on_ranks("local", 4, kLong, [&](Channel& whole) {
    if (whole.rank() == 0) return;
    RankSubset subset(whole, {1, 2, 3});
    for (int round = 1; round <= 20; ++round) {
      ++came;
      subset.barrier();
      EXPECT_GE(came, round * 3);
      subset.barrier();
    }
  });
}

TEST(RankSubset, RefusesMembersThatDoNotAscendOrLackTheRank) {
  run_on_ranks("local", 3, kLong, [](Channel& whole) {
    if (whole.rank() != 1) return;
    for (const std::vector<int>& members : {std::vector<int>{0, 2}, {1, 0}, {1, 1}, {1, 3}, {}})
      EXPECT_THROW(RankSubset(whole, members), std::invalid_argument);
    EXPECT_THROW((void)RankSubset(whole, {0, 1}).receive({{1}, at::kFloat}, 2, 0), std::invalid_argument);
  });
}

}  // namespace
}  // namespace stagecraft::channel
