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

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
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

// 16, 22.6, 32, 45.3, 64 floats, in fours: GPUs copy 16 bytes at a time.
TEST(MessageBytes, AreMultiplesOf16From64On) {
  EXPECT_THAT(message_bytes(260_B, 2),
              ElementsAre(4_B, 8_B, 16_B, 20_B, 32_B, 44_B, 64_B, 80_B, 128_B, 176_B, 256_B, 260_B));
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
    calls.push_back({task, samples, batch, time});
    std::vector<double> out;
    for (std::int64_t i = 0; i < samples; ++i) {
      const double factor = 1 + noise_ * static_cast<double>(random_()) / static_cast<double>(std::mt19937::max());
      out.push_back(seconds_(task) * factor * (i == 0 ? first_factor : 1));
      time += out.back() * static_cast<double>(batch);
    }
    return out;
  }
  LinkMeasurement measure(const LinksOptions& options, const std::function<void(const std::string&)>& progress = {}) {
    return measure_links(*this, options, progress, [this] { return time; });
  }

  struct Call {
    LinkTask task;
    std::int64_t samples;
    std::int64_t batch;
    double start;
  };
  bool with_copies = false;
  Seconds shortest{0};
  double first_factor = 1;  ///< of the first sample of each call
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

// 2 ms fit 199 messages of 4 to 32 bytes (10.004 to 10.032 us) and 198 of 64 (10.064 us).
TEST(MeasureLinks, StopsACurveOnceItIsPrecise) {
  FakeMeter meter(2, 0, line);
  const LinkMeasurement measured = meter.measure({.most_bytes = Bytes(64), .most_time = Seconds(100)});
  EXPECT_EQ(measured.ranks, 2);
  ASSERT_EQ(measured.curves.size(), 5U);
  for (const LinkCurve& curve : measured.curves) {
    ASSERT_EQ(curve.points.size(), 5U);
    for (const LinkPoint& point : curve.points) {
      EXPECT_EQ(point.stop, Stop::Precise);
      EXPECT_DOUBLE_EQ(point.time.median.value, 1e-5 + 1e-9 * static_cast<double>(point.bytes.value));
      EXPECT_EQ(point.time.count, 10);
      EXPECT_EQ(point.samples, point.bytes == 64_B ? 1980 : 1990);
    }
  }
  // Two messages to warm up, ten rounds of at most 2 ms and a message of at most 10.064 us.
  EXPECT_LT(meter.time, 25 * (2 * 1.0064e-5 + 10 * (0.002 + 1.0064e-5)));
}

TEST(MeasureLinks, VisitsEverySizeInEveryRoundInAlternatingOrder) {
  FakeMeter meter(2, 0, line);
  (void)meter.measure({.most_bytes = Bytes(16), .most_time = Seconds(100)});
  std::vector<std::int64_t> order;
  for (const auto& call : meter.calls) {
    if (call.task.operation == SendReceive) order.push_back(call.task.bytes.value);
  }
  std::vector<std::int64_t> expected{16, 8, 4};  // to warm up
  for (int i = 0; i < 5; ++i) expected.insert(expected.end(), {4, 8, 16, 16, 8, 4});
  EXPECT_EQ(order, expected);
  EXPECT_EQ(meter.calls.size(), 5 * expected.size());
  EXPECT_EQ(meter.calls.back().task.operation, ReduceScatter);
}

// Rounds of 60, 20, 40, 100 and 50 s: median 50 s, deviations 10, 30, 10, 50 and 0 s with the median 10 s.
TEST(MeasureLinks, TakesMediansOverRounds) {
  std::size_t runs = 0;
  const std::vector<double> seconds{70, 60, 60, 20, 40, 100, 50};  // the first two to warm up
  FakeMeter meter(2, 0, [&](const LinkTask&) { return seconds[runs++ % seconds.size()]; });
  for (const LinkCurve& curve : meter.measure({.most_bytes = Bytes(4), .most_time = Seconds(1)}).curves) {
    const LinkPoint& point = curve.points.front();
    EXPECT_EQ(point.time, (Timing{Seconds(50), Seconds(10), 5}));
    EXPECT_EQ(point.stop, Stop::Time);
    EXPECT_EQ(point.samples, 5);
  }
}

// A round of five sizes takes 10 ms, all ten 0.1 s. Three rounds are slow, fewer than half.
TEST(MeasureLinks, HasNoBumpWhereTheMachineWasSlowForAWhile) {
  const FakeMeter* clock = nullptr;
  FakeMeter meter(
      2, 0, [&](const LinkTask& task) { return line(task) * (clock->time > 0.025 && clock->time < 0.055 ? 3 : 1); });
  clock = &meter;
  const LinkMeasurement measured = meter.measure({.most_bytes = Bytes(64), .most_time = Seconds(100)});
  for (const LinkPoint& point : measured.curves.front().points)
    EXPECT_DOUBLE_EQ(point.time.median.value, 1e-5 + 1e-9 * static_cast<double>(point.bytes.value));
}

// A curve takes 1 s, in which the machine slows down by 5 % of its first speed; a round takes 10 ms. Half of the rounds
// are within a quarter of the 5 % of the middle one.
TEST(MeasureLinks, HasTheSameDriftInAllPoints) {
  const FakeMeter* clock = nullptr;
  FakeMeter meter(2, 0, [&](const LinkTask&) { return 1e-4 * (1 + clock->time / 20); });
  clock = &meter;
  double middle = 0.5;
  for (const LinkCurve& curve :
       meter.measure({.most_bytes = Bytes(64), .most_time = Seconds(5), .error = 1e-9}).curves) {
    const auto [fastest, slowest] =
        std::ranges::minmax(curve.points, {}, [](const LinkPoint& point) { return point.time.median; });
    EXPECT_LT(slowest.time.median / fastest.time.median, 1.0005);
    for (const LinkPoint& point : curve.points)
      EXPECT_NEAR(point.time.spread.value() / point.time.median, 0.0125 / (1 + middle / 20), 3e-4);
    middle += 1;
  }
}

TEST(MeasureLinks, ForgetsTheFirstOfSeveralSamplesInARound) {
  FakeMeter two(2, 0, [](const LinkTask&) { return 0.0009; });  // two fit into 2 ms
  two.first_factor = 10;
  const LinkPoint point = two.measure({.most_bytes = Bytes(4)}).curves.front().points.front();
  EXPECT_EQ(point.time.median, Seconds(0.0009));
  EXPECT_EQ(point.samples, 20);
  EXPECT_EQ(two.calls.at(1).samples, 3);

  FakeMeter one(2, 0, [](const LinkTask&) { return 0.0015; });
  one.first_factor = 10;
  const LinkPoint alone = one.measure({.most_bytes = Bytes(4)}).curves.front().points.front();
  EXPECT_EQ(alone.time.median, Seconds(0.0015) * 10);
  EXPECT_EQ(alone.samples, 10);
  EXPECT_EQ(one.calls.at(1).samples, 1);
}

// A curve has 0.4 s. The precise size takes ten rounds of 2 ms at first and twenty in all, 40 ms; the other one has the
// rest, 0.36 s for messages of 12.5 ms: 29 in the mean, and by chance a few more or less.
TEST(MeasureLinks, LeavesTimeOfPrecisePointsToTheOthersOfTheCurve) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> seconds(0.005, 0.02);
  FakeMeter meter(2, 0, [&](const LinkTask& task) { return task.bytes == 8_B ? seconds(random) : 1e-4; });
  for (const LinkCurve& curve : meter.measure({.most_bytes = Bytes(8), .most_time = Seconds(2)}).curves) {
    EXPECT_EQ(curve.points[0].stop, Stop::Precise);
    EXPECT_EQ(curve.points[0].time.count, 20);
    EXPECT_EQ(curve.points[1].stop, Stop::Time);
    EXPECT_NEAR(static_cast<double>(curve.points[1].time.count), 29, 5);
  }
}

// A curve has 1 s for eight sizes, of which the largest takes 30 to 36 ms. By equal time, 0.125 s each, it would have
// its third turn after 0.5 s and its fourth after 0.8 s. It has one when another fifth of the time is over and the
// round, of 15 ms, has come to it. The seven others share what two messages to warm up and five turns leave: 0.77 s, 52
// turns each.
TEST(MeasureLinks, SpreadsTheTurnsOfLongMessagesOverTheTime) {
  FakeMeter meter(2, 0.2, [](const LinkTask& task) { return task.bytes == 512_B ? 0.03 : 1e-4; });
  const LinkMeasurement measured = meter.measure({.most_bytes = Bytes(512), .most_time = Seconds(5), .error = 1e-9});
  const std::vector<LinkPoint>& points = measured.curves.front().points;
  EXPECT_EQ(points.back().time.count, 5);
  for (std::size_t i = 0; i < 7; ++i) EXPECT_NEAR(static_cast<double>(points[i].time.count), 52, 3);
  std::vector<double> turns;
  for (const auto& call : meter.calls) {
    if (call.task == LinkTask{SendReceive, 512_B, 2, 0, 1} && call.samples == 1) turns.push_back(call.start);
  }
  ASSERT_EQ(turns.size(), 5U);
  for (std::size_t i = 1; i < 5; ++i) {
    EXPECT_GT(turns[i], 0.2 * static_cast<double>(i));
    EXPECT_LT(turns[i], 0.2 * static_cast<double>(i) + 0.035);
  }
}

// 26 messages of 2^-17 s fit into 0.2 ms.
TEST(MeasureLinks, TakesShortRoundsIfThereIsNoTime) {
  FakeMeter meter(2, 0, [](const LinkTask&) { return 0x1p-17; });
  for (const LinkCurve& curve : meter.measure({.most_bytes = Bytes(8), .most_time = Seconds(1e-9)}).curves) {
    for (const LinkPoint& point : curve.points) {
      EXPECT_EQ(point.time.count, 5);
      EXPECT_EQ(point.samples, 5 * 26);
      EXPECT_EQ(point.stop, Stop::Time);
    }
  }
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

// 25 sizes of 5 curves, too much noise to become precise: each curve takes its share of the time and a part of a round.
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
    if (call.samples != 2) { EXPECT_EQ(call.batch, call.task.bytes == 4_B ? 128 : 1); }  // two are to warm up
  }
}

TEST(MeasureLinks, TakesFiveRoundsOfWhatNeverFits) {
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

TEST(MeasureLinks, ReportsWhatComesNext) {
  FakeMeter meter(2, 0, line);
  std::vector<std::string> told;
  (void)meter.measure({.most_bytes = Bytes(4)}, [&](const std::string& text) { told.push_back(text); });
  ASSERT_EQ(told.size(), 5U * 11);  // before the warm-up and each of ten rounds
  EXPECT_EQ(told[0], "send_receive, warm-up (1 of 5)");
  EXPECT_EQ(told[1], "send_receive, round 1 (1 of 5)");
  EXPECT_EQ(told[10], "send_receive, round 10 (1 of 5)");
  EXPECT_EQ(told[11], "duplex, warm-up (2 of 5)");
  FakeMeter three(3, 0, line);
  (void)three.measure({.most_bytes = Bytes(4)}, [&](const std::string& text) { told.push_back(text); });
  // send_receive, duplex, three collectives of 2 and of 3, three pairs.
  EXPECT_EQ(told.back(), "ranks 1 and 2, round 10 (11 of 11)");
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
