#include "executor/run/worker/span_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagecraft::run {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Action kForward{ActionKind::Forward, 1, 3, -1};
constexpr Action kUpdate{ActionKind::Update, 1, -1, -1};

struct Clocked {
  double time = 0;
  SpanRecorder recorder{2, c10::Device(c10::kCPU), [this] { return time; }, 4};
};

TEST(SpanRecorder, RecordsFromTheMarkUntilNow) {
  Clocked c;
  c.time = 10;
  const auto start = c.recorder.mark();
  c.time = 12.5;
  c.recorder.record(kForward, 7, start);
  EXPECT_THAT(c.recorder.take(), ElementsAre(Span{2, 7, kForward, Seconds(10), Seconds(12.5)}));
}

TEST(SpanRecorder, KeepsTheOrderOfTheRecordsNotOfTheMarks) {
  Clocked c;
  const auto outer = c.recorder.mark();
  c.time = 1;
  const auto inner = c.recorder.mark();
  c.time = 2;
  c.recorder.record(kForward, 0, inner);
  c.recorder.record(kUpdate, 0, outer);
  EXPECT_THAT(c.recorder.take(),
              ElementsAre(Span{2, 0, kForward, Seconds(1), Seconds(2)}, Span{2, 0, kUpdate, Seconds(0), Seconds(2)}));
}

TEST(SpanRecorder, GivesEachSpanOnce) {
  Clocked c;
  c.recorder.record(kForward, 0, c.recorder.mark());
  EXPECT_EQ(c.recorder.take().size(), 1U);
  EXPECT_THAT(c.recorder.take(), IsEmpty());
  c.recorder.record(kUpdate, 0, c.recorder.mark());
  c.recorder.settle();
  EXPECT_EQ(c.recorder.take_all().size(), 1U);
  EXPECT_THAT(c.recorder.take_all(), IsEmpty());
}

TEST(SpanRecorder, RecordsMoreThanItHasRoomFor) {
  Clocked c;
  for (int i = 0; i < 10; ++i) c.recorder.record(kForward, i, c.recorder.mark());
  const std::vector<Span> spans = c.recorder.take();
  ASSERT_EQ(spans.size(), 10U);
  EXPECT_EQ(spans.back().step, 9);
}

}  // namespace
}  // namespace stagecraft::run
