#include "executor/run/run_report.h"

#include <gtest/gtest.h>

namespace stagecraft::run {
namespace {

TEST(SpeedText, SetsThePredictionBesideTheMeasurement) {
  // 16 / 0.0197 = 812.2; 19.7 / 18.9 = 1.042.
  EXPECT_EQ(speed_text(16, Seconds(19.7e-3), Seconds(18.9e-3)),
            "812 samples/s, 19.7 ms per step (predicted 18.9 ms, +4 %)");
  EXPECT_EQ(speed_text(4, Seconds(1), Seconds(2)), "4.0 samples/s, 1.00 s per step (predicted 2.00 s, -50 %)");
  EXPECT_EQ(speed_text(5, Seconds(2), std::nullopt), "2.5 samples/s, 2.00 s per step");
}

TEST(ClosingText, TakesTheStepsBehindTheFirstTwo) {
  Measurement measurement;
  measurement.losses = {3, 2.5, 2, 1.75};
  measurement.microbatches = 4;
  measurement.microbatch_samples = 2;
  // Steps of 10, 5, 1 and 1 s: 8 samples in the median of 1 s.
  measurement.timeline.steps = {{0, Seconds(0), Seconds(10)},
                                {1, Seconds(10), Seconds(15)},
                                {2, Seconds(15), Seconds(16)},
                                {3, Seconds(16), Seconds(17)}};
  EXPECT_EQ(closing_text(measurement, Seconds(0.5)),
            "loss 3.0000 to 1.7500 in 4 steps; 8.0 samples/s, 1.00 s per step (predicted 500 ms, +100 %)");
}

}  // namespace
}  // namespace stagecraft::run
