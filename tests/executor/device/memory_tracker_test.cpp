#include "executor/device/memory_tracker.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <thread>

namespace stagecraft::device {
namespace {

at::Tensor kibibyte() { return at::empty({256}, at::kFloat); }

TEST(MemoryTracker, CountsWhatIsAllocatedInItsScope) {
  MemoryTracker tracker;
  const at::Tensor outside = kibibyte();
  {
    const MemoryTracker::Scope scope(tracker);
    const at::Tensor a = kibibyte();
    { const at::Tensor b = kibibyte(); }
    EXPECT_EQ(tracker.live(), 1_KiB);
    EXPECT_EQ(tracker.peak(), 2_KiB);
    tracker.reset_peak();
    EXPECT_EQ(tracker.peak(), 1_KiB);
  }
  EXPECT_EQ(tracker.live(), 0_KiB);
}

TEST(MemoryTracker, ABlockCountsForItsOwnerWhicheverRankFreesIt) {
  MemoryTracker first;
  MemoryTracker second;
  at::Tensor handed;
  {
    const MemoryTracker::Scope scope(first);
    handed = kibibyte();
  }
  EXPECT_EQ(first.live(), 1_KiB);
  std::thread([&] {
    const MemoryTracker::Scope scope(second);
    handed.reset();
  }).join();
  EXPECT_EQ(first.live(), 0_KiB);
  EXPECT_EQ(second.live(), 0_KiB);
  EXPECT_EQ(second.peak(), 0_KiB);
}

}  // namespace
}  // namespace stagecraft::device
