#include "costmodel/project/auto.h"

#include <gtest/gtest.h>

#include <string>

namespace stagecraft::project {
namespace {

Span span(ActionKind kind, int rank, Seconds begin, Seconds end) { return {rank, 0, {kind, rank, 0, -1}, begin, end}; }

/// A step of two ranks from 0 to `end`: rank 0 computes for 4 s, rank 1 for 3 s.
Timeline two_ranks(Seconds end, Bytes first, Bytes second) {
  Timeline out;
  out.ranks = 2;
  out.stage_of_rank = {0, 1};
  out.steps = {{0, 0_s, end}};
  out.spans = {span(ActionKind::Forward, 0, 0_s, 1_s), span(ActionKind::Backward, 0, 1_s, 4_s),
               span(ActionKind::Forward, 1, 1_s, 2_s), span(ActionKind::Backward, 1, 2_s, 4_s)};
  out.memory = {{0, first, {}}, {1, second, {}}};
  return out;
}

/// A step of 4 s with 8 samples; rank 1 is idle for 1 s, so that the bubble is 1 / 8.
Prediction predicted() {
  Prediction out;
  out.iteration = 4_s;
  out.samples_per_s = 2;
  out.bubble = 0.125;
  out.timeline = two_ranks(4_s, 1024_B, 3072_B);
  return out;
}

TEST(SummaryText, HasARowForEachPredictedQuantity) {
  EXPECT_EQ(summary_text(predicted(), nullptr),
            "                   predicted\n"
            "step                  4.00 s\n"
            "samples per second       2.0\n"
            "idle                  12.5 %\n"
            "peak memory         3.00 KiB\n");
}

TEST(SummaryText, LeavesOutWhatWasNotPredicted) {
  Prediction prediction = predicted();
  prediction.samples_per_s.reset();
  prediction.timeline.memory.clear();
  EXPECT_EQ(summary_text(prediction, nullptr),
            "     predicted\n"
            "step    4.00 s\n"
            "idle    12.5 %\n");
}

// Measured: a step of 5 s with one microbatch of 5 samples, 1 sample per second. Rank 0 is idle for 1 of 5 s, rank 1
// for 2 of 5 s: 30 % on average, where 0 and 1 of 4 s were predicted, 12.5 %.
TEST(SummaryText, PutsWhatWasMeasuredBesideIt) {
  Measurement measured;
  measured.microbatches = 1;
  measured.microbatch_samples = 5;
  measured.timeline = two_ranks(5_s, 512_B, 2048_B);
  EXPECT_EQ(summary_text(predicted(), &measured),
            "                   predicted measured    error\n"
            "step                  4.00 s   5.00 s  -20.0 %\n"
            "samples per second       2.0      1.0 +100.0 %\n"
            "idle in a run         12.5 %   30.0 % -17.5 pt\n"
            "peak memory         3.00 KiB 2.00 KiB  +50.0 %\n");
}

}  // namespace
}  // namespace stagecraft::project
