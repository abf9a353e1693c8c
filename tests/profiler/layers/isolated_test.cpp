#include "profiler/layers/isolated.h"

#include <gtest/gtest.h>

#include "costmodel/index.h"
#include "profiler/subject/subject.h"
#include "tests/profiler/row_of_layers.h"
#include "tests/profiler/small_models.h"

namespace stagecraft::profiler {
namespace {

class IsolatedOn : public ::testing::TestWithParam<Small> {};

TEST_P(IsolatedOn, RunsEachLayerForwardAndBackward) {
  Whole whole(intake::build_model(GetParam().name, GetParam().set));
  const auto outputs = layer_outputs(whole.model, whole.batch, 1, {});
  std::vector<std::string> told;
  const StoppingRule hasty{.fewest = 4, .least = 4, .most_seconds = 0};
  const std::vector<IsolatedTime> times = isolated_times(whole.model, whole.batch, outputs, 1, {}, Bytes(0), hasty,
                                                         [&](const std::string& layer) { told.push_back(layer); });
  ASSERT_EQ(times.size(), whole.model.layers.size());
  EXPECT_EQ(told.size(), times.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    EXPECT_EQ(told[i], whole.model.layers[i].name);
    EXPECT_GE(times[i].forward.count, 4) << told[i];
    EXPECT_GT(times[i].forward.median, Seconds(0)) << told[i];
    EXPECT_EQ(times[i].backward.count, times[i].forward.count) << told[i];
  }
}

INSTANTIATE_TEST_SUITE_P(EveryModel, IsolatedOn, ::testing::ValuesIn(small_models()),
                         [](const auto& tested) { return tested.param.name; });

constexpr StoppingRule kHasty{.fewest = 5, .least = 5, .most_seconds = 0};

Timing timing(double median, double spread, std::int64_t count) { return {Seconds(median), Seconds(spread), count}; }

class SplitOn : public ::testing::TestWithParam<Small> {};

TEST_P(SplitOn, TimesLayersThatHaveTwoParts) {
  Whole whole(intake::build_model(GetParam().name, GetParam().set));
  const auto outputs = layer_outputs(whole.model, whole.batch, 1, {});
  const auto times = split_times(whole.model, whole.batch, outputs, 1, {}, Bytes(0), kHasty);
  ASSERT_EQ(times.size(), whole.model.layers.size());
  int split = 0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const model::LayerSpec& layer = whole.model.layers[i];
    const bool two = !layer.parameters.empty() && sends_gradient(whole.model, to_int(i), outputs);
    ASSERT_EQ(times[i].has_value(), two) << layer.name;
    if (!two) continue;
    EXPECT_GE(times[i]->whole.count, 5) << layer.name;
    EXPECT_GT(times[i]->whole.median, Seconds(0)) << layer.name;
    EXPECT_GT(times[i]->inputs.median, Seconds(0)) << layer.name;
    if (!times[i]->separable) continue;
    ++split;
    EXPECT_TRUE(times[i]->weights.spread) << layer.name;
    EXPECT_GT(times[i]->weights.median, Seconds(0)) << layer.name;
    EXPECT_GE(times[i]->late.count, 5) << layer.name;
    EXPECT_GT(times[i]->late.median, Seconds(0)) << layer.name;
  }
  EXPECT_GT(split, 0);
}

INSTANTIATE_TEST_SUITE_P(EveryModel, SplitOn, ::testing::ValuesIn(small_models()),
                         [](const auto& tested) { return tested.param.name; });

TEST(SplitTimes, TellAWeightThatIsUsedTwice) {
  const model::Model model = row_of_layers(
      {hand_layer("once", 256,
                  [](const model::LayerCall& c) { return std::vector{at::mul(c.inputs[0], c.parameters[0])}; }),
       hand_layer("twice", 256,
                  [](const model::LayerCall& c) {
                    return std::vector{at::mul(at::mul(c.inputs[0], c.parameters[0]), c.parameters[0])};
                  }),
       hand_layer("again", 256,
                  [](const model::LayerCall& c) { return std::vector{at::mul(c.inputs[0], c.parameters[0])}; }),
       hand_layer("sum", 0, [](const model::LayerCall& c) { return std::vector{at::sum(c.inputs[0])}; })});
  const auto outputs = layer_outputs(model, row_batch(), 1, {});
  const auto times = split_times(model, row_batch(), outputs, 1, {}, Bytes(0), kHasty);
  EXPECT_FALSE(times[0]) << "the data needs no gradient";
  ASSERT_TRUE(times[1] && times[2]);
  EXPECT_FALSE(times[1]->separable);
  EXPECT_EQ(times[1]->inputs, times[1]->whole);
  EXPECT_EQ(times[1]->weights, Timing{});
  EXPECT_EQ(times[1]->late, Timing{});
  EXPECT_TRUE(times[2]->separable);
  EXPECT_FALSE(times[3]);
}

TEST(BackwardPartsOfAStep, AreThoseOfTheLayerAloneScaledOrLate) {
  // In the step the backward takes 3 s, alone 2 s: a factor of 1.5.
  const SplitTime alone{timing(2, 0.5, 8), timing(1, 0.25, 8), timing(1.5, 0.125, 8), timing(2, 0.125, 4)};
  EXPECT_EQ(backward_parts(timing(3, 1, 20), alone), (BackwardParts{timing(1.5, 0.375, 8), timing(2.25, 0.1875, 8)}));
  SplitTime late = alone;
  late.late = timing(2.5, 0.5, 4);
  EXPECT_EQ(backward_parts(timing(3, 1, 20), late), (BackwardParts{timing(1.5, 0.375, 8), timing(2.5, 0.5, 4)}));
  SplitTime whole = alone;
  whole.separable = false;
  EXPECT_EQ(backward_parts(timing(3, 1, 20), whole), (BackwardParts{timing(3, 1, 20), timing(0, 0, 20), false}));
}

TEST(BackwardPartsOfAStep, AreAllOfOneKindWhereThereIsNothingToSplit) {
  EXPECT_EQ(backward_parts(timing(3, 1, 20), true), (BackwardParts{timing(3, 1, 20), timing(0, 0, 20)}));
  EXPECT_EQ(backward_parts(timing(3, 1, 20), false), (BackwardParts{timing(0, 0, 20), timing(3, 1, 20)}));
}

TEST(LayerAlone, RunsItsWholeBackward) {
  Whole whole(tiny_mlp());
  const auto outputs = layer_outputs(whole.model, whole.batch, 1, {});
  LayerAlone alone(whole.model, 2, whole.batch, outputs, 1, {});  // fc2
  const auto gradients = alone.program.backward(alone.program.forward(alone.inputs, alone.data, 0, 0), alone.gradients);
  ASSERT_EQ(gradients.size(), 1U);
  EXPECT_TRUE(gradients[0].defined());
  for (const stage::Parameter& parameter : alone.program.parameters()) {
    ASSERT_TRUE(parameter.value.grad().defined()) << parameter.name;
    // The gradients of the outputs are ones, so that of the bias is the number of samples.
    if (parameter.value.dim() == 1) { EXPECT_EQ(parameter.value.grad()[0].item<double>(), 2) << parameter.name; }
  }
}

}  // namespace

}  // namespace stagecraft::profiler
