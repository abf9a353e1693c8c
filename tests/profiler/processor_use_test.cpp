#include "profiler/processor_use.h"

#include <gtest/gtest.h>

namespace stagecraft::profiler {
namespace {

// proc(5): user nice system idle iowait irq softirq steal guest guest_nice; user and nice include the guest times.
TEST(BusyTime, AddsWhatIsNeitherIdleNorWaiting) {
  EXPECT_EQ(busy_time("cpu  1000 200 300 90000 5000 10 20 70 400 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n", 100),
            Seconds((1000 + 200 + 300 + 10 + 20 + 70) / 100.0));
}

TEST(BusyTime, IsAbsentWhereTheTextIsAnother) {
  EXPECT_FALSE(busy_time("", 100));
  EXPECT_FALSE(busy_time("cpu  1 2 3\n", 100));
  EXPECT_FALSE(busy_time("intr 1 2 3 4 5 6 7 8\n", 100));
}

TEST(IsCrowded, OnlyWhereOthersLeaveTooFewProcessors) {
  EXPECT_FALSE(is_crowded({.ours = 2, .others = 0.05, .count = 2}));  // no other programs
  EXPECT_TRUE(is_crowded({.ours = 1.4, .others = 0.6, .count = 2}));
  EXPECT_FALSE(is_crowded({.ours = 2, .others = 30, .count = 64}));  // enough processors left
  EXPECT_TRUE(is_crowded({.ours = 2, .others = 61, .count = 64}));
}

TEST(ProcessTime, GrowsWithWork) {
  const Seconds before = process_time();
  volatile double sum = 0;
  while (process_time() <= before) {
    for (int i = 0; i < 100000; ++i) sum = sum + 1;
  }
  EXPECT_GT(process_time(), before);
}

TEST(MachineTime, IsAboveZeroWhereLinuxTells) {
  const auto machine = machine_time();
  if (!machine) GTEST_SKIP() << "no /proc/stat";
  EXPECT_GT(*machine, Seconds(0));
}

}  // namespace
}  // namespace stagecraft::profiler
