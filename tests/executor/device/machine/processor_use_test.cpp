#include "executor/device/machine/processor_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/index.h"

namespace stagecraft::device {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// proc(5): user nice system idle iowait irq softirq steal guest guest_nice; user and nice include the guest times.
const std::string kStat =
    "cpu  1100 220 303 90004 5005 16 27 78 409 0\n"
    "cpu0 1000 200 300 90000 5000 10 20 70 400 0\n"
    "cpu1 100 20 3 4 5 6 7 8 9 0\n"
    "cpu10 7 0 0 0 0 0 0 0 0 0\n"
    "intr 1 2 3 4 5 6 7 8\n";

TEST(BusyTime, AddsWhatIsNeitherIdleNorWaiting) {
  EXPECT_EQ(busy_time(kStat, 100, {0}), Seconds((1000 + 200 + 300 + 10 + 20 + 70) / 100.0));
  EXPECT_EQ(busy_time(kStat, 100, {1}), Seconds((100 + 20 + 3 + 6 + 7 + 8) / 100.0));
  EXPECT_EQ(busy_time(kStat, 100, {0, 1}), Seconds((1600 + 144) / 100.0));
}

TEST(BusyTime, IsAbsentWhereTheTextIsAnother) {
  EXPECT_FALSE(busy_time("", 100, {0}));
  EXPECT_FALSE(busy_time("cpu0 1 2 3\n", 100, {0}));
  EXPECT_FALSE(busy_time("intr 1 2 3 4 5 6 7 8\n", 100, {0}));
  EXPECT_FALSE(busy_time(kStat, 100, {0, 2})) << "processor 2 is not there";
  EXPECT_FALSE(busy_time(kStat, 100, {})) << "unknown processors";
}

TEST(ProcessTime, GrowsWithWork) {
  const Seconds before = process_time();
  volatile double sum = 0;
  while (process_time() <= before) {
    for (int i = 0; i < 100000; ++i) sum = sum + 1;
  }
  EXPECT_GT(process_time(), before);
}

TEST(ProcessorMoment, KnowsTheMachineWhereLinuxTells) {
  const ProcessorMoment moment = processor_moment();
  EXPECT_GT(moment.process, Seconds(0));
  EXPECT_FALSE(own_processors().empty());
  if (!moment.machine) GTEST_SKIP() << "no /proc/stat";
  EXPECT_GT(*moment.machine, Seconds(0));
}

TEST(ProcessorReport, IsTheDifferenceOfTwoMoments) {
  const ProcessorReport report =
      processor_report({Seconds(10), Seconds(1), Seconds(100)}, {Seconds(14), Seconds(3), Seconds(107)});
  EXPECT_EQ(report.lasted, Seconds(4));
  EXPECT_EQ(report.process_time, Seconds(2));
  EXPECT_EQ(report.machine_time, Seconds(7));
  EXPECT_EQ(report.processors, to_int(own_processors().size()));
  EXPECT_EQ(processor_report({}, {}).process, report.process);
  EXPECT_EQ(processor_report({}, {}).host, report.host);
  EXPECT_FALSE(processor_report({}, {Seconds(1), Seconds(1), Seconds(1)}).machine_time);
}

ProcessorReport report(std::uint64_t host, std::uint64_t process, double time, double machine, double lasted = 4) {
  return {host, process, Seconds(lasted), Seconds(time), Seconds(machine), 2};
}

// In 4 s, host 7 was busy for 7 s: 2 s for rank 0, 3 s for rank 1, so 2 s for others. Host 8 for 4 s, all of rank 2's.
TEST(ProcessorUseByHost, SubtractsTheTimeOfAllRanks) {
  const std::vector<ProcessorReport> reports{report(7, 1, 2, 7), report(7, 2, 3, 99), report(8, 1, 4, 4)};
  EXPECT_THAT(processor_use(reports), ElementsAre(ProcessorUse{1.25, 0.5, 2}, ProcessorUse{1, 0, 2}));
}

TEST(ProcessorUseByHost, CountsAProcessOfSeveralRanksOnce) {
  const std::vector<ProcessorReport> reports{report(7, 1, 4, 6), report(7, 1, 4, 6)};
  EXPECT_THAT(processor_use(reports), ElementsAre(ProcessorUse{1, 0.5, 2}));
}

// Ticks are late by up to 10 ms, so that the machine may seem to have done less than our processes.
TEST(ProcessorUseByHost, IsNeverNegative) {
  EXPECT_THAT(processor_use(std::vector{report(7, 1, 4, 3.99)}), ElementsAre(ProcessorUse{1, 0, 2}));
}

TEST(ProcessorUseByHost, LeavesOutWhatCannotBeTold) {
  ProcessorReport silent = report(7, 1, 4, 4);
  silent.machine_time.reset();
  EXPECT_THAT(processor_use(std::vector{silent}), IsEmpty());
  EXPECT_THAT(processor_use(std::vector{report(7, 1, 0.4, 0.8, 0.49)}), IsEmpty());
  EXPECT_THAT(processor_use(std::vector{report(7, 1, 0.5, 0.75, 0.5)}), ElementsAre(ProcessorUse{1, 0.5, 2}));
}

}  // namespace
}  // namespace stagecraft::device
