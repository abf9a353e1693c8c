#include "executor/data/prefetch.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

namespace stagecraft::data {
namespace {

std::vector<at::Tensor> numbered(std::int64_t i) { return {at::full({1}, i, at::TensorOptions().dtype(at::kLong))}; }

TEST(Prefetch, GivesBatchesInOrder) {
  Prefetch prefetch(numbered, 2);
  for (std::int64_t i = 0; i < 50; ++i) EXPECT_EQ(prefetch.take().at(0).item<std::int64_t>(), i);
}

TEST(Prefetch, LoadsNoFurtherAheadThanTold) {
  std::atomic<std::int64_t> loaded{0};
  {
    Prefetch prefetch([&](std::int64_t i) { return ++loaded, numbered(i); }, 3);
    (void)prefetch.take();
  }
  EXPECT_LE(loaded, 1 + 3);
}

TEST(Prefetch, ThrowsWhatLoadingThrewAfterWhatCameBefore) {
  Prefetch prefetch(
      [](std::int64_t i) {
        if (i == 2) throw std::runtime_error("the disk is gone");
        return numbered(i);
      },
      1);
  (void)prefetch.take();
  (void)prefetch.take();
  for (int again = 0; again < 2; ++again)
    EXPECT_THAT([&] { (void)prefetch.take(); }, ::testing::ThrowsMessage<std::runtime_error>("the disk is gone"));
}

TEST(ReadyToUpload, LeavesACpusTensorsAsTheyAre) {
  const std::vector<at::Tensor> batch{at::full({2, 4}, 1.0).slice(1, 0, 2), numbered(3).at(0)};
  const std::vector<at::Tensor> ready = ready_to_upload(batch, c10::kCPU);
  ASSERT_EQ(ready.size(), batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) EXPECT_TRUE(ready[i].is_same(batch[i])) << i;
}

TEST(Prefetch, EndsWithoutBeingAsked) { const Prefetch prefetch(numbered, 4); }

}  // namespace
}  // namespace stagecraft::data
