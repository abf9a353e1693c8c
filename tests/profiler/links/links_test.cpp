#include "profiler/links/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>

namespace stagecraft::profiler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using enum LinkOperation;

// ---- the measured sizes

TEST(MessageBytes, GrowsByTwo) {
  EXPECT_THAT(message_bytes(50_B, 1), ElementsAre(4_B, 8_B, 16_B, 32_B, 48_B));
  EXPECT_THAT(message_bytes(32_B, 1), ElementsAre(4_B, 8_B, 16_B, 32_B));
  EXPECT_EQ(message_bytes(64_MiB, 1).size(), 25U);  // 4 = 2^2, 64 MiB = 2^26
}

// 1, 1.41, 2, 2.83, 4, 5.66, 8 floats, in whole floats.
TEST(MessageBytes, GrowsByTheRootOfTwoInWholeFloats) {
  EXPECT_THAT(message_bytes(32_B, 2), ElementsAre(4_B, 8_B, 16_B, 20_B, 32_B));
}

TEST(MessageBytes, CountsWholeFloats) {
  EXPECT_THAT(message_bytes(19_B, 1), ElementsAre(4_B, 8_B, 16_B));
  EXPECT_THAT(message_bytes(7_B, 1), ElementsAre(4_B));
}

TEST(MessageBytes, RefusesLessThanAFloatAndMoreThanMemory) {
  EXPECT_THAT([] { (void)message_bytes(3_B, 1); },
              ThrowsMessage<std::invalid_argument>("the largest message is 3 bytes, must be 4 to 17179869184"));
  EXPECT_THAT([] { (void)message_bytes(17_GiB, 1); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("must be 4 to 17179869184")));
  EXPECT_THAT([] { (void)message_bytes(8_B, 0); },
              ThrowsMessage<std::invalid_argument>("the number of sizes per octave is 0, must be 1 to 64"));
}

std::vector<std::string> curves_of(int ranks, bool copies) {
  std::vector<std::string> out;
  for (const LinkTask& task : link_tasks(ranks, copies, {.most_bytes = Bytes(4)}))
    out.push_back(curve_name(task.operation, task.ranks));
  return out;
}

TEST(LinkTasks, AreWhatSoManyRanksCanDo) {
  EXPECT_THAT(curves_of(1, true), ElementsAre("send_receive", "all_reduce of 1", "all_gather of 1",
                                              "reduce_scatter of 1", "host_to_device", "device_to_host"));
  EXPECT_THAT(curves_of(2, false),
              ElementsAre("send_receive", "duplex", "all_reduce of 2", "all_gather of 2", "reduce_scatter of 2"));
  EXPECT_THAT(
      curves_of(5, false),
      ElementsAre("send_receive", "duplex", "pairs of 4", "all_reduce of 2", "all_reduce of 3", "all_reduce of 4",
                  "all_reduce of 5", "all_gather of 2", "all_gather of 3", "all_gather of 4", "all_gather of 5",
                  "reduce_scatter of 2", "reduce_scatter of 3", "reduce_scatter of 4", "reduce_scatter of 5"));
  EXPECT_THAT([] { (void)link_tasks(0, false, {}); },
              ThrowsMessage<std::invalid_argument>("the number of ranks is 0, must be at least 1"));
}

TEST(LinkTasks, SendFromOneRankAloneToItself) {
  const std::vector<LinkTask> tasks = link_tasks(1, false, {.most_bytes = Bytes(8)});
  EXPECT_EQ(tasks[0], (LinkTask{SendReceive, 4_B, 1, 0, 0}));
  EXPECT_EQ(tasks[1], (LinkTask{SendReceive, 8_B, 1, 0, 0}));
}

// ---- the measuring loop, with a meter that advances its own clock

class FakeMeter : public LinkMeter {
 public:
  /// Every task takes `seconds_of_task(task)` times a random factor between 1 and 1 + `noise`.
  FakeMeter(int ranks, double noise, std::function<double(const LinkTask&)> seconds_of_task)
      : ranks_(ranks), noise_(noise), seconds_(std::move(seconds_of_task)) {}
  int ranks() const override { return ranks_; }
  bool copies() const override { return with_copies; }
  Seconds shortest_sample() const override { return shortest; }
  std::vector<double> seconds_of(const LinkTask& task, std::int64_t samples, std::int64_t batch) override {
    std::vector<double> out;
    for (std::int64_t i = 0; i < samples; ++i) {
      const double factor = 1 + noise_ * static_cast<double>(random_()) / static_cast<double>(std::mt19937::max());
      out.push_back(seconds_(task) * factor);
      time += out.back() * static_cast<double>(batch);
    }
    calls.push_back({task, samples, batch});
    return out;
  }
  LinkMeasurement measure(const LinksOptions& options, const std::function<void(const std::string&)>& progress = {}) {
    return measure_links(*this, options, progress, [this] { return time; });
  }

  struct Call {
    LinkTask task;
    std::int64_t samples;
    std::int64_t batch;
  };
  bool with_copies = false;
  Seconds shortest{0};
  double time = 0;
  std::vector<Call> calls;

 private:
  int ranks_;
  double noise_;
  std::function<double(const LinkTask&)> seconds_;
  std::mt19937 random_{5};
};

/// 10 us plus 1 ns per byte.
double line(const LinkTask& task) { return 1e-5 + 1e-9 * static_cast<double>(task.bytes.value); }

TEST(MeasureLinks, StopsAPointOnceItIsPrecise) {
  FakeMeter meter(2, 0, line);
  const LinkMeasurement measured = meter.measure({.most_bytes = Bytes(64), .most_time = Seconds(100)});
  EXPECT_EQ(measured.ranks, 2);
  ASSERT_EQ(measured.curves.size(), 5U);
  for (const LinkCurve& curve : measured.curves) {
    ASSERT_EQ(curve.points.size(), 5U);
    for (const LinkPoint& point : curve.points) {
      EXPECT_EQ(point.stop, Stop::Precise);
      EXPECT_DOUBLE_EQ(point.time.median.value, 1e-5 + 1e-9 * static_cast<double>(point.bytes.value));
    }
  }
  // Two warm-up samples; the first round fills 10 ms: at most 1000 times 10 us.
  EXPECT_LT(meter.time, 25 * 0.011);
}

TEST(MeasureLinks, SaysWhereTimeWasUpFirst) {
  // ReduceScatter is the last curve, so no later one lacks the time that it takes.
  FakeMeter meter(2, 3, [](const LinkTask& task) { return task.operation == ReduceScatter ? 1.0 : 1e-6; });
  const LinkMeasurement measured = meter.measure({.most_bytes = Bytes(4), .most_time = Seconds(1), .error = 0.01});
  for (const LinkCurve& curve : measured.curves) {
    const LinkPoint& point = curve.points.front();
    EXPECT_EQ(point.stop == Stop::Time, curve.operation == ReduceScatter) << curve_name(curve.operation, 2);
    EXPECT_EQ(point.time.count == 5, curve.operation == ReduceScatter);
  }
}

// 25 sizes of 5 curves, too much noise to become precise: each point takes its share of the time plus at most one
// doubled round.
TEST(MeasureLinks, TakesAboutTheTimeItWasGiven) {
  FakeMeter meter(2, 3, [](const LinkTask&) { return 1e-4; });
  const LinkMeasurement measured = meter.measure({.most_time = Seconds(20), .error = 1e-6});
  EXPECT_GT(meter.time, 19);
  EXPECT_LT(meter.time, 22);
  for (const LinkCurve& curve : measured.curves) {
    for (const LinkPoint& point : curve.points) EXPECT_EQ(point.stop, Stop::Time);
  }
}

TEST(MeasureLinks, GivesTimeThatPrecisePointsLeaveToTheOthers) {
  FakeMeter meter(2, 3, [](const LinkTask& task) { return task.operation == ReduceScatter ? 1e-3 : 1e-5; });
  const LinkMeasurement measured = meter.measure({.most_bytes = Bytes(4), .most_time = Seconds(5), .error = 0.02});
  // With equal shares from the start, this point would have 1 s for samples of 1 ms to 4 ms each.
  const LinkPoint& last = measured.curves.back().points.front();
  EXPECT_TRUE(last.stop == Stop::Precise || last.time.count > 1000) << last.time.count;
}

TEST(MeasureLinks, BatchesWhatTheClockCannotResolve) {
  FakeMeter meter(2, 0, [](const LinkTask& task) { return task.bytes == 4_B ? 0x1p-17 : 0x1p-9; });
  meter.shortest = Seconds(0x1p-10);
  (void)meter.measure({.most_bytes = Bytes(8), .most_time = Seconds(10)});
  for (const auto& call : meter.calls) {
    if (call.samples > 2) { EXPECT_EQ(call.batch, call.task.bytes == 4_B ? 128 : 1); }
  }
}

TEST(MeasureLinks, TakesFiveSamplesOfWhatNeverFits) {
  FakeMeter meter(2, 1, [](const LinkTask&) { return 60.0; });
  for (const LinkCurve& curve : meter.measure({.most_bytes = Bytes(8), .most_time = Seconds(1)}).curves) {
    for (const LinkPoint& point : curve.points) {
      EXPECT_EQ(point.time.count, 5);
      EXPECT_EQ(point.stop, Stop::Time);
    }
  }
}

TEST(MeasureLinks, FindsTheSlowestPair) {
  FakeMeter meter(4, 0, [](const LinkTask& task) { return task.from == 1 && task.to == 3 ? 4e-4 : 1e-4; });
  const LinkMeasurement measured = meter.measure({.most_bytes = Bytes(64)});
  ASSERT_TRUE(measured.slowest_pair);
  EXPECT_EQ(measured.slowest_pair->from, 1);
  EXPECT_EQ(measured.slowest_pair->to, 3);
  EXPECT_EQ(measured.slowest_pair->bytes, 64_B);
  EXPECT_DOUBLE_EQ(measured.slowest_pair->ratio, 4);
  std::set<std::pair<int, int>> pairs;
  for (const auto& call : meter.calls) pairs.insert({call.task.from, call.task.to});
  EXPECT_EQ(pairs.size(), 6U);  // 4 * 3 / 2
}

TEST(MeasureLinks, CopiesWhereThereIsADevice) {
  FakeMeter meter(1, 0, line);
  meter.with_copies = true;
  const LinkMeasurement measured = meter.measure({.most_bytes = Bytes(4)});
  EXPECT_EQ(measured.curves.back().operation, DeviceToHost);
  EXPECT_EQ(measured.slowest_pair, std::nullopt);
}

TEST(MeasureLinks, TellsWhatComesNext) {
  FakeMeter meter(2, 0, line);
  std::vector<std::string> told;
  (void)meter.measure({.most_bytes = Bytes(4)}, [&](const std::string& text) { told.push_back(text); });
  EXPECT_THAT(told, ElementsAre("send_receive, 4 B (1 of 5)", "duplex, 4 B (2 of 5)", "all_reduce of 2, 4 B (3 of 5)",
                                "all_gather of 2, 4 B (4 of 5)", "reduce_scatter of 2, 4 B (5 of 5)"));
}

TEST(MeasureLinks, RefusesNoTimeAndNoError) {
  FakeMeter meter(2, 0, line);
  EXPECT_THAT([&] { (void)meter.measure({.most_time = Seconds(0)}); },
              ThrowsMessage<std::invalid_argument>("the time is 0 s, must be above 0"));
  EXPECT_THAT([&] { (void)meter.measure({.error = 0}); },
              ThrowsMessage<std::invalid_argument>("the relative error is 0, must be above 0"));
}

}  // namespace
}  // namespace stagecraft::profiler
