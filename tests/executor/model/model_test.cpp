#include "executor/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <stdexcept>

#include "tests/support/models/planned_models.h"

namespace stagecraft::model {
namespace {

TEST(Append, NumbersLayersAndInputs) {
  Model model;
  const ValueRef a = append(model, ModelInput{"a", "float32", {1}}), b = append(model, ModelInput{"b", "float32", {1}});
  EXPECT_EQ(a.layer, -1);
  EXPECT_EQ(b.input, 1);
  const auto layer = [&](const std::string& name, std::vector<ValueRef> inputs) {
    return append(
        model, LayerSpec{.name = name, .kind = "Test", .inputs = std::move(inputs), .parameters = {}, .forward = {}});
  };
  const ValueRef first = layer("first", {a}), second = layer("second", {first, b});
  EXPECT_EQ(first.layer, 0);
  EXPECT_EQ(second.layer, 1);
  EXPECT_EQ(second.output, 0);
  EXPECT_EQ(model.layers[1].inputs[0].layer, 0);
  EXPECT_EQ(model.layers[1].inputs[1].input, 1);
}

TEST(FrozenBytes, CountBuffersAndFrozenParametersByTheirTypes) {
  LayerSpec layer;
  layer.parameters = {zeros("a", {2, 3}), zeros("b", {5}), zeros("c", {7})};
  EXPECT_EQ(frozen_bytes(layer), Bytes(0));
  layer.parameters[1].trainable = layer.parameters[2].trainable = false;
  layer.parameters[2].dtype = at::kLong;
  EXPECT_EQ(frozen_bytes(layer), Bytes(5 * 4 + 7 * 8));
  EXPECT_EQ(parameter_count(layer), 6);
}

TEST(FanInScale, IsOneOverTheRoot) {
  EXPECT_EQ(fan_in_scale(4), 0.5);
  EXPECT_EQ(fan_in_scale(1), 1);
}

TEST(ParameterSpecs, BeginAsTheirNamesSay) {
  EXPECT_EQ(ones("a", {2}).init, Init::Ones);
  EXPECT_EQ(zeros("a", {2}).init, Init::Zeros);
  EXPECT_EQ(uniform("a", {2}, 0.5).scale, 0.5);
  EXPECT_EQ(normal("a", {2}, 0.5).init, Init::Normal);
  for (const ParameterSpec& parameter : {ones("a", {2}), zeros("a", {2}), uniform("a", {2}, 1), normal("a", {2}, 1)})
    EXPECT_TRUE(parameter.trainable);
}

TEST(MixSeed, IsFnv1aUnderSplitmix64) {
  // The first output of splitmix64 from state 0 is e220a8397b1dcdaf, of FNV-1a for "a" af63dc4c8601ec8c (both from
  // their authors' pages); the rest repeats that definition.
  const auto scramble = [](std::uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  constexpr std::uint64_t zero = 0xe220a8397b1dcdaf;
  std::uint64_t want = 0xaf63dc4c8601ec8c;
  for (int part = 0; part < 3; ++part) want = scramble(want ^ zero);
  EXPECT_EQ(scramble(0), zero);
  EXPECT_EQ(mix_seed(0, "a"), want);
}

TEST(MixSeed, DistinguishesItsArguments) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 10; ++seed)
    for (const char* word : {"", "a", "b", "ab"})
      for (std::uint64_t a = 0; a < 10; ++a)
        for (std::uint64_t b = 0; b < 10; ++b) seen.insert(mix_seed(seed, word, a, b));
  EXPECT_EQ(seen.size(), 10U * 4 * 10 * 10);
}

TEST(InitialValue, HasTheSpreadAsked) {
  constexpr std::int64_t n = 1000000;
  const at::Tensor flat = initial_value(uniform("u", {n}, 0.5), 1);
  EXPECT_LE(flat.abs().max().item<float>(), 0.5F);
  EXPECT_NEAR(flat.std().item<double>(), 0.5 / std::sqrt(3.0), 0.001);
  const at::Tensor bell = initial_value(normal("n", {n}, 0.5), 1);
  EXPECT_NEAR(bell.mean().item<double>(), 0, 5 * 0.5 / 1000);
  EXPECT_NEAR(bell.std().item<double>(), 0.5, 0.002);
  EXPECT_FALSE(bell.requires_grad());
  EXPECT_EQ(bell.scalar_type(), at::kFloat);
}

using stagecraft::testing::cut_plan;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::map<std::string, std::string> kTiny{{"inputs", "4"}, {"width", "8"}, {"layers", "2"}, {"classes", "3"}};

TEST(CheckSamples, NamesABoundOnOneSideAlone) {
  Model model = intake::build_model("mlp", kTiny);
  model.least_samples = 2;
  EXPECT_NO_THROW(check_samples(model, 2));
  EXPECT_NO_THROW(check_samples(model, 1 << 20));
  EXPECT_THAT([&] { check_samples(model, 1); },
              ThrowsMessage<std::invalid_argument>("mlp was exported for a microbatch of 2 or more, found 1"));
}

TEST(CheckSamples, KeepsAProfileFromStarting) {
  Model model = intake::build_model("mlp", kTiny);
  model.most_samples = 1;
  EXPECT_THAT([&] { (void)planned_model(model, 2); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("exported for a microbatch of 1, found 2")));
}

TEST(LayersOfStages, ExplainsAMergedLayer) {
  PlannedModel planned = planned_model("mlp", kTiny, 2);
  Plan plan = cut_plan(planned, {2}, {1, 1}, "1f1b", 2);
  plan.stages[1].layers.push_back("norm");
  EXPECT_THAT([&] { (void)layers_of_stages(plan, planned.model); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("model \"mlp\": unknown layer \"norm\"")));
  planned.model.merged["norm"] = "is part of \"fc2\", whose buffer it writes";
  EXPECT_THAT(
      [&] { (void)layers_of_stages(plan, planned.model); },
      ThrowsMessage<std::invalid_argument>("model \"mlp\": layer \"norm\" is part of \"fc2\", whose buffer it writes"));
}

}  // namespace

}  // namespace stagecraft::model
