#include "executor/device/machine/yardstick.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace stagecraft::device {
namespace {

using ::testing::ElementsAre;

/// A clock that only work moves: each run of a work takes the next of its times, the last one again and again.
struct FakeMachine {
  double seconds = 0;
  std::map<std::string, std::vector<double>> times;
  std::map<std::string, int> runs;
  int made = 0;

  FixedWork work(const std::string& name) {
    return {name, [this, name] {
              const auto& of_work = times.at(name);
              const auto run = static_cast<std::size_t>(runs[name]++);
              seconds += of_work[std::min(run, of_work.size() - 1)];
            }};
  }
  YardstickMeter meter() {
    return {"a machine", 3,
            [this] {
              ++made;
              std::vector<FixedWork> out;
              for (const auto& [name, unused] : times) out.push_back(work(name));
              return out;
            },
            [this] { return seconds; }};
  }
};

/// The runs of one reading: one that warms up, then 15 with this median, in no order.
std::vector<double> runs_around(double median) {
  std::vector<double> out{100};
  for (int i = 0; i < 7; ++i) out.insert(out.end(), {median + 1 + i, median / (2 + i)});
  out.push_back(median);
  return out;
}

// Three readings of 4, 6 and 8: their median is 6.
TEST(YardstickMeter, KeepsTheMediansOfItsReadings) {
  FakeMachine machine;
  for (const double median : {4, 8, 6}) {
    const std::vector<double> runs = runs_around(median);
    machine.times["work"].insert(machine.times["work"].end(), runs.begin(), runs.end());
  }
  YardstickMeter meter = machine.meter();
  for (int i = 0; i < 3; ++i) meter.read();
  EXPECT_EQ(meter.result(),
            (Yardstick{"a machine", 3, {{"work", Seconds(4), Seconds(6), Seconds(6), Seconds(4), Seconds(8), 3}}}));
}

TEST(YardstickMeter, OneReadingIsBeforeAndAfter) {
  FakeMachine machine;
  machine.times = {{"copy", {2}}, {"product", {3}}};
  YardstickMeter meter = machine.meter();
  meter.read();
  EXPECT_THAT(meter.result().works,
              ElementsAre(YardstickTimes{"copy", Seconds(2), Seconds(2), Seconds(2), Seconds(2), Seconds(2), 1},
                          YardstickTimes{"product", Seconds(3), Seconds(3), Seconds(3), Seconds(3), Seconds(3), 1}));
}

// Seven runs of 15 that other work made ten times as long do not move a reading.
TEST(YardstickMeter, IsNotMovedByDisturbedRuns) {
  FakeMachine machine;
  machine.times["work"] = {1, 10, 10, 10, 10, 10, 10, 10, 1};
  YardstickMeter meter = machine.meter();
  meter.read();
  EXPECT_EQ(meter.result().works.front().median, Seconds(1));
}

// A reading of 16 runs of 1 ms is due again after 4 s; one of 16 runs of 10 ms, 0.16 s, after 200 times that, 32 s.
TEST(YardstickMeter, ReadsRarelyInPauses) {
  for (const auto& [run, due] : {std::pair(0.001, 4.0), std::pair(0.01, 32.0)}) {
    FakeMachine machine;
    machine.times["work"] = {run};
    YardstickMeter meter = machine.meter();
    meter.read();
    machine.seconds += due - 0.01;
    meter.read_if_due();
    EXPECT_EQ(machine.made, 1) << run;
    machine.seconds += 0.011;
    meter.read_if_due();
    EXPECT_EQ(machine.made, 2) << run;
    meter.read_if_due();
    EXPECT_EQ(machine.made, 2) << run;
  }
}

// What the works do is real; only the clock is not needed here.
TEST(FixedWorks, RunOnAProcessor) {
  const std::vector<FixedWork> works = fixed_works(c10::kCPU);
  std::vector<std::string> names;
  for (const FixedWork& work : works) {
    names.push_back(work.name);
    work.run();
  }
  EXPECT_THAT(names, ElementsAre("matrix product of 192 x 192 float32", "copy of 4 MiB"));
}

TEST(DeviceYardstick, TimesRealWork) {
  YardstickMeter meter = device_yardstick(c10::kCPU, 1);
  meter.read();
  meter.read();
  const Yardstick yardstick = meter.result();
  EXPECT_EQ(yardstick.threads, 1);
  ASSERT_EQ(yardstick.works.size(), 2U);
  for (const YardstickTimes& times : yardstick.works) {
    EXPECT_EQ(times.readings, 2);
    EXPECT_GT(times.fastest, Seconds(0));
    EXPECT_LT(times.fastest, Seconds(1));
    EXPECT_LE(times.fastest, times.median);
    EXPECT_LE(times.median, times.slowest);
  }
}

}  // namespace
}  // namespace stagecraft::device
