#include "executor/run/worker/stage_worker.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/models/closure_layers.h"

namespace stagecraft::run {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Three layers, one per stage: "first" returns 2ax and 3ax; "second" reads 3ax; "loss" reads 2ax and second's output.
model::Model three_layers() {
  model::Model model;
  const model::ValueRef x = model::append(model, model::ModelInput{"x", "float32", {1}});
  model::append(model, {.name = "first",
                        .kind = "Pair",
                        .inputs = {x},
                        .outputs = 2,
                        .parameters = {model::ones("a", {1})},
                        .forward = [](const model::LayerCall& call) -> std::vector<at::Tensor> {
                          const at::Tensor scaled = call.inputs[0].mul(call.parameters[0]);
                          return {scaled.mul(2), scaled.mul(3)};
                        }});
  testing::closure_relu(model, "second", {.layer = 0, .output = 1});
  model::append(model, {.name = "loss",
                        .kind = "Sum",
                        .inputs = {{.layer = 1}, {.layer = 0, .output = 0}},
                        .parameters = {model::ones("b", {1})},
                        .forward = [](const model::LayerCall& call) -> std::vector<at::Tensor> {
                          return {call.inputs[0].mul(call.parameters[0]).sub(call.inputs[1]).mean()};
                        }});
  return model;
}

/// Each layer in a separate stage: first's output 0 passes through stage 1 to stage 2.
Plan three_stages() {
  const auto tensor = [](const std::string& layer, int output) {
    return BoundaryTensor{layer, output, Bytes(4), {1, 1}, "float32", true};
  };
  Plan plan;
  plan.microbatch_samples = 1;
  plan.microbatches = 2;
  plan.warmups = {2, 1, 0};
  plan.stages = {{{"first"}, {0}}, {{"second"}, {1}}, {{"loss"}, {2}}};
  plan.boundaries = {{0, 1, {tensor("first", 0), tensor("first", 1)}},
                     {1, 2, {tensor("second", 0), tensor("first", 0)}}};
  return plan;
}

struct Bound {
  explicit Bound(Plan made = three_stages()) : plan(std::move(made)) {}
  [[nodiscard]] ResidentStage stage(int number, int microbatches = 2) const {
    return make_resident_stage(bound, number, bound.plan.first_rank(number), microbatches, {.learning_rate = 0.5}, 1,
                               {});
  }
  model::Model model = three_layers();
  BoundPlan plan;
  BoundModel bound = bind_model(plan, model);
};

TEST(ResidentStage, NumbersReceivedAndSentValuesApart) {
  const Bound bound;
  const ResidentStage middle = bound.stage(1);
  EXPECT_EQ(middle.stage, 1);
  ASSERT_EQ(middle.slots.size(), 2U);
  EXPECT_THAT(middle.slots[0], ElementsAre(0, 1)) << "of what it receives";
  EXPECT_THAT(middle.slots[1], ElementsAre(0, 1)) << "of what it sends";
  const ResidentStage first = bound.stage(0);
  EXPECT_THAT(first.slots[0], ElementsAre(0, 1));
  EXPECT_THAT(first.slots[1], IsEmpty()) << "a boundary between other stages";
}

TEST(ResidentStage, SendsAValueOfTwoBoundariesFromOneSlot) {
  Plan plan = three_stages();
  // first's output 0 goes directly to both later stages.
  plan.boundaries[1].tensors.pop_back();
  plan.boundaries.push_back({0, 2, {plan.boundaries[0].tensors[0]}});
  plan.boundaries[0].tensors.erase(plan.boundaries[0].tensors.begin());
  plan.boundaries[0].tensors.push_back(plan.boundaries[2].tensors[0]);
  const Bound bound(plan);
  const ResidentStage first = bound.stage(0);
  EXPECT_THAT(first.slots[0], ElementsAre(0, 1));  // outputs 1 and 0
  EXPECT_THAT(first.slots[2], ElementsAre(1));
}

TEST(ResidentStage, PassesOnAValueThatItDoesNotRead) {
  const Bound bound;
  const ResidentStage middle = bound.stage(1);
  stage::Flight flight = middle.program->forward({at::full({1, 1}, 2.0), at::full({1, 1}, 3.0)}, {}, 0, 0);
  ASSERT_EQ(flight.sent.size(), 2U);
  EXPECT_EQ(flight.sent[0].item<double>(), 3) << "relu of first's output 1";
  EXPECT_EQ(flight.sent[1].item<double>(), 2) << "first's output 0";
}

TEST(ResidentStage, HasRoomForItsMicrobatches) {
  const Bound bound;
  const ResidentStage stage = bound.stage(2, 6);
  EXPECT_EQ(stage.flights.size(), 6U);
  EXPECT_EQ(stage.input_gradients.size(), 6U);
  EXPECT_EQ(stage.rests.size(), 6U);
  EXPECT_THAT(stage.split, IsEmpty());
}

TEST(ResidentStage, OptimizerUpdatesTheParametersOfTheProgram) {
  const Bound bound;
  const ResidentStage stage = bound.stage(2);
  ASSERT_EQ(stage.program->parameters().size(), 1U);
  const stage::Parameter& b = stage.program->parameters().front();
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.layer, 2);
  b.value.mutable_grad() = at::full({1}, 4.0);
  stage.optimizer->step(2);
  EXPECT_EQ(b.value.item<double>(), 1 - 0.5 * 2);
}

TEST(ResidentStage, RecomputesWhereThePlanSaysSo) {
  for (const bool recompute : {false, true}) {
    Plan plan = three_stages();
    plan.stages[0].recompute = recompute;
    Bound bound(plan);
    int forwards = 0;
    bound.model.layers[0].forward = [&forwards, inner = bound.model.layers[0].forward](const model::LayerCall& call) {
      ++forwards;
      return inner(call);
    };
    const ResidentStage stage = bound.stage(0);
    stage::Flight flight = stage.program->forward({}, {at::full({1, 1}, 1.0)}, 0, 0);
    (void)stage.program->backward(std::move(flight), {at::full({1, 1}, 1.0), at::full({1, 1}, 1.0)});
    EXPECT_EQ(forwards, recompute ? 2 : 1);
    EXPECT_EQ(stage.program->parameters().front().value.grad().item<double>(), 2 + 3);
  }
}

TEST(ResidentStage, EvaluatesUnderAScheduleThatDoesNotTrain) {
  for (const char* schedule : {"1f1b", "forward"}) {
    Plan plan = three_stages();
    plan.schedule = schedule;
    Bound bound(plan);
    bool training = false;
    bound.model.layers[0].forward = [&training, inner = bound.model.layers[0].forward](const model::LayerCall& call) {
      training = call.training;
      return inner(call);
    };
    (void)bound.stage(0).program->forward({}, {at::full({1, 1}, 1.0)}, 0, 0);
    EXPECT_EQ(training, std::string(schedule) == "1f1b");
  }
}

TEST(ResidentStage, WarmsUpWithoutATrace) {
  const Bound bound;
  for (const int number : {0, 1, 2}) {
    ResidentStage stage = bound.stage(number);
    std::vector<stage::Parameter>& parameters = stage.program->parameters();
    std::vector<at::Tensor> before;
    for (const stage::Parameter& parameter : parameters) before.push_back(parameter.value.detach().clone());
    std::vector<at::Tensor> data;
    if (number == 0) data.push_back(at::full({1, 1}, 5));
    warm_up(stage, bound.bound, {.name = "adam"}, {}, data);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(parameters[i].value.equal(before[i]));
      EXPECT_FALSE(parameters[i].value.grad().defined());
      EXPECT_FALSE(stage.optimizer->state(i).first.defined());
    }
    // A gradient that was there is there again, and not added to.
    if (parameters.empty()) continue;
    const at::Tensor gradient = at::full({1}, 7);
    parameters[0].value.mutable_grad() = gradient;
    warm_up(stage, bound.bound, {}, {}, data);
    EXPECT_TRUE(parameters[0].value.grad().is_same(gradient));
    EXPECT_EQ(gradient.item<float>(), 7);
  }
}

}  // namespace
}  // namespace stagecraft::run
