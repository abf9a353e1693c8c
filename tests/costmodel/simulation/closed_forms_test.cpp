#include "costmodel/simulation/closed_forms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "costmodel/format/files/files.h"
#include "tests/support/places.h"

// simulate_test compares the schedules' forms with event simulation.

namespace stagecraft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Random stages with whole seconds, whose sums are exact.
StageTimes random_stages(std::mt19937& random) {
  StageTimes out;
  for (auto n = 1 + random() % 6; n > 0; --n) {
    out.forward.emplace_back(static_cast<double>(1 + random() % 9));
    out.backward.emplace_back(static_cast<double>(1 + random() % 9));
  }
  return out;
}

// The last stage ends its forwards at 1 + 0.5 + 2 * 2 = 5.5 and its backwards of 4 s at 9.5 and 13.5; the last gradient
// reaches stage 0 at 14, where the last backward of 3 s ends at 17.
TEST(GpipeTime, AddsTheSlowestStageForEachFurtherMicrobatch) {
  EXPECT_EQ(gpipe_time({{1_s, 2_s}, {3_s, 4_s}}, 2, 0.5_s), 17_s);
  EXPECT_EQ(gpipe_time({{2_s}, {3_s}}, 4, 9_s), 20_s);  // one stage has no hops
}

/// When the last of `microbatches` leaves the last station; each station serves one at a time.
double flow_shop(const std::vector<Seconds>& stations, int microbatches, double hop) {
  std::vector<double> arrived(static_cast<std::size_t>(microbatches), 0);
  for (std::size_t s = 0; s < stations.size(); ++s) {
    double free = 0;
    for (double& at : arrived) {
      free = std::max(free, at + (s > 0 ? hop : 0)) + stations[s].value;
      at = free;
    }
  }
  return arrived.back();
}

TEST(GpipeTime, IsThatOfTwoFlowShops) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const StageTimes stages = random_stages(random);
    const int microbatches = 1 + static_cast<int>(random() % 9);
    const double hop = 0.25 * static_cast<double>(random() % 5);
    std::vector<Seconds> back(stages.backward.rbegin(), stages.backward.rend());
    EXPECT_DOUBLE_EQ(gpipe_time(stages, microbatches, Seconds(hop)).value,
                     flow_shop(stages.forward, microbatches, hop) + flow_shop(back, microbatches, hop))
        << "seed " << seed;
  }
}

//   stage 0  F0 0-1   F1 1-2                   B0 4.5-6.5           B1 7.5-9.5
//   stage 1     F0 1.25-2.25  B0 2.25-4.25  F1 4.25-5.25  B1 5.25-7.25
TEST(OneForwardOneBackwardTime, WaitsForHopsThereAndBack) {
  EXPECT_EQ(one_forward_one_backward_time(1_s, 2_s, 2, 2, 0.25_s), 9.5_s);
  EXPECT_EQ(one_forward_one_backward_time(1_s, 2_s, 2, 2, 0_s), 9_s);
  EXPECT_EQ(one_forward_one_backward_time(1_s, 2_s, 1, 4, 0.25_s), 12_s);  // one stage has no hops
}

// With one chunk per device, two microbatches fill two devices like 1F1B; two chunks halve the idle time.
TEST(InterleavedTime, DividesTheIdleTimeByTheChunks) {
  EXPECT_EQ(interleaved_time(1_s, 2_s, 2, 1, 2), one_forward_one_backward_time(1_s, 2_s, 2, 2, 0_s));
  EXPECT_EQ(interleaved_time(1_s, 2_s, 2, 2, 2), 7.5_s);
  EXPECT_EQ(interleaved_time(1_s, 2_s, 4, 3, 8), 27_s);  // 8 * 3 + 3 * 3 / 3
}

// Two stages, two microbatches, all parts 1 s:
//   stage 0  F0 F1 .  B0 W0 B1 W1
//   stage 1  .  F0 B0 F1 B1 W0 W1
TEST(ZeroBubbleTime, FillsTheIdleTimeWithWeightGradients) {
  EXPECT_EQ(zero_bubble_h1_time(1_s, 1_s, 1_s, 2, 2), 7_s);
  EXPECT_EQ(zero_bubble_h1_time(3_s, 3_s, 2_s, 4, 8), 76_s);  // 8 * 8 + 3 * (3 + 3 - 2)
}

TEST(ClosedForms, AreTheComputeAloneOnOneStage) {
  for (int m = 1; m <= 5; ++m) {
    const Seconds compute = 8.0 * m * 1_s;
    EXPECT_EQ(gpipe_time({{3_s}, {5_s}}, m, 1_s), compute);
    EXPECT_EQ(one_forward_one_backward_time(3_s, 5_s, 1, m, 1_s), compute);
    EXPECT_EQ(interleaved_time(3_s, 5_s, 1, 2, m), compute);
    EXPECT_EQ(zero_bubble_h1_time(3_s, 3_s, 2_s, 1, m), compute);
    EXPECT_EQ(one_forward_one_backward_bracket({{3_s}, {5_s}}, m).low, compute);
    EXPECT_EQ(one_forward_one_backward_bracket({{3_s}, {5_s}}, m).high, compute);
  }
}

// Stages of 1 + 2 s and 4 + 1 s, three microbatches: low = max(3 * 3, 3 * 5 + 3), high = 3 + 5 + 2 (4 + 2).
TEST(OneForwardOneBackwardBracket, CountsTheSlowestStageAndAllBefore) {
  const Bracket bracket = one_forward_one_backward_bracket({{1_s, 4_s}, {2_s, 1_s}}, 3);
  EXPECT_EQ(bracket.low, 18_s);
  EXPECT_EQ(bracket.high, 20_s);
}

TEST(OneForwardOneBackwardBracket, ClosesOnEqualStagesAndOneMicrobatch) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const StageTimes stages = random_stages(random);
    const Bracket one = one_forward_one_backward_bracket(stages, 1);
    Seconds all;
    for (std::size_t s = 0; s < stages.forward.size(); ++s) all += stages.forward[s] + stages.backward[s];
    EXPECT_EQ(one.low, all) << "seed " << seed;
    EXPECT_EQ(one.high, all) << "seed " << seed;
    const int microbatches = 1 + static_cast<int>(random() % 9);
    const Bracket any = one_forward_one_backward_bracket(stages, microbatches);
    EXPECT_LE(any.low, any.high) << "seed " << seed;
    const int p = static_cast<int>(stages.forward.size());
    StageTimes equal = stages;
    std::ranges::fill(equal.forward, 3_s);
    std::ranges::fill(equal.backward, 5_s);
    EXPECT_EQ(one_forward_one_backward_bracket(equal, microbatches).low,
              one_forward_one_backward_time(3_s, 5_s, p, microbatches, 0_s));
  }
}

TEST(TransformerBytes, FollowTheFormulasByHand) {
  TransformerShape shape;
  shape.hidden = 2;
  shape.heads = 1;
  shape.layers = 1;
  shape.sequence = 3;
  shape.microbatch_samples = 1;
  EXPECT_EQ(transformer_static_bytes(shape), 864_B);                // 18 * 12 * 2 * 2
  EXPECT_EQ(transformer_activation_bytes(shape), 249_B);            // 6 (10 + 24 + 5 * 1 * 3 / 2)
  EXPECT_EQ(transformer_selective_activation_bytes(shape), 204_B);  // 6 * 34
  shape.tensor_parallel = 2;
  EXPECT_EQ(transformer_static_bytes(shape), 432_B);
  EXPECT_EQ(transformer_activation_bytes(shape), 154_B);  // 6 (10 + 12 + 3.75) = 154.5
  EXPECT_EQ(transformer_selective_activation_bytes(shape), 102_B);
}

TEST(TransformerBytes, GrowByTheChunksOfTheFirstStage) {
  TransformerShape shape{2, 1, 1, 3, 1, 1, 2, 1};
  EXPECT_EQ(transformer_static_bytes(shape), 432_B);                // the layer split over two stages
  EXPECT_EQ(transformer_selective_activation_bytes(shape), 204_B);  // p / p of the microbatches in flight
  shape.chunks = 2;
  EXPECT_EQ(transformer_selective_activation_bytes(shape), 255_B);  // 204 (1 + 1 / 4)
}

TEST(WeightVersions, AreAsManyRoundsAsThePipelineHoldsMicrobatches) {
  EXPECT_THAT(weight_versions({1, 1, 1, 1}), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(weight_versions({2, 1}), ElementsAre(2, 1));  // 3 replicas in rounds of 2
  EXPECT_THAT(weight_versions({1, 3, 2}), ElementsAre(6, 2, 1));
  EXPECT_THAT(weight_versions({}), IsEmpty());
}

TEST(Vectors, TransformerMemoryFormulasGiveThePublishedValues) {
  const auto vectors =
      nlohmann::json::parse(format::read_text(source_folder() + "/tests/golden/costmodel/vectors.json"));
  for (const auto& v : vectors.at("memory_korthikanti_GiB")) {
    const TransformerShape shape{v.at("h"), v.at("a"), v.at("L"), v.at("q"),
                                 v.at("b"), v.at("t"), v.at("p"), v.at("v")};
    EXPECT_NEAR(transformer_static_bytes(shape) / 1_GiB, v.at("param_opt_GiB").get<double>(), 0.0051);
    EXPECT_NEAR(transformer_activation_bytes(shape) / 1_GiB, v.at("act_tp_GiB").get<double>(), 0.0051);
    EXPECT_NEAR(transformer_selective_activation_bytes(shape) / 1_GiB, v.at("act_sp_sel_GiB").get<double>(), 0.0051);
  }
  for (const auto& v : vectors.at("pipedream_versions")) {
    EXPECT_EQ(weight_versions(v.at("replicas")), v.at("versions").get<std::vector<int>>());
  }
}

}  // namespace
}  // namespace stagecraft
