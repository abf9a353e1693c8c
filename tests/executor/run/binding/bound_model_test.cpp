#include "executor/run/binding/bound_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <stdexcept>

#include "executor/run/run.h"
#include "tests/support/models/planned_models.h"

namespace stagecraft::run {
namespace {

using stagecraft::testing::cut_plan;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

const std::map<std::string, std::string> kTiny{{"inputs", "4"}, {"width", "8"}, {"layers", "2"}, {"classes", "3"}};

void bind(const Plan& plan, const model::Model& model) {
  const BoundPlan bound(plan);
  (void)bind_model(bound, model);
}

/// A tiny mlp whose fc2 writes its buffer "fc2.state" in a way that cannot be replayed; cut before fc2.
PlannedModel with_a_written_buffer() {
  PlannedModel planned = planned_model("mlp", kTiny, 2);
  planned.model.layers[2].parameters.push_back(
      {.name = "fc2.state", .shape = {1}, .trainable = false, .written = true});
  return planned;
}

TEST(BindModel, RefusesReplicasOfABufferThatNobodyCanReplay) {
  const PlannedModel planned = with_a_written_buffer();
  const std::string refusal =
      "layer \"fc2\" writes \"fc2.state\" in its forward in a way that replicas cannot replay; plan stage 1 without "
      "replicas";
  const Plan replicated = cut_plan(planned, {2}, {1, 2}, "1f1b", 2);
  EXPECT_THAT([&] { bind(replicated, planned.model); }, ThrowsMessage<std::invalid_argument>(refusal));
  EXPECT_THAT([&] { (void)run_local(replicated, planned.model, *planned.data, {}, std::chrono::milliseconds(5000)); },
              ThrowsMessage<std::invalid_argument>(refusal));
}

TEST(BindModel, AllowsThemElsewhereAndWhereEachReplicaKeepsItsOwn) {
  const PlannedModel planned = with_a_written_buffer();
  EXPECT_NO_THROW(bind(cut_plan(planned, {2}, {2, 1}, "1f1b", 2), planned.model));
  EXPECT_NO_THROW(bind(cut_plan(planned, {2}, {1, 2}, "pipedream", 2), planned.model));
}

TEST(BindModel, SaysWhichReplicasSumGradientsAndExchangeStatistics) {
  const PlannedModel planned = planned_model("resnet18", {{"image", "32"}, {"channels", "4"}, {"classes", "10"}}, 2);
  ASSERT_EQ(planned.model.layers[1].kind, "BatchNorm2d");
  const auto bound_to = [&](const std::string& schedule, const std::function<void(const BoundModel&)>& look) {
    const BoundPlan plan(cut_plan(planned, {1, 2}, {1, 2, 3}, schedule, 6));
    look(bind_model(plan, planned.model));
  };
  bound_to("1f1b", [](const BoundModel& bound) {
    EXPECT_THAT(bound.sums[0], IsEmpty());
    EXPECT_THAT(bound.sums[1], ElementsAre(Field(&GradientSum::ranks, ElementsAre(1, 2))));
    EXPECT_FALSE(bound.statistics[0]);
    EXPECT_THAT(bound.statistics[1]->ranks, ElementsAre(1, 2));
    EXPECT_EQ(bound.statistics[1]->values, 2 * 4);  // mean and variance of four channels
    EXPECT_THAT(bound.statistics[2]->ranks, ElementsAre(3, 4, 5));
    const ParameterHome& mean = bound.homes.at("bn1.running_mean");
    EXPECT_EQ(mean.stage, 1);
    EXPECT_EQ(mean.owner, 1);
    EXPECT_THAT(mean.holders, ElementsAre(1, 2));
  });
  for (const char* const schedule : {"pipedream", "forward"}) {
    bound_to(schedule, [](const BoundModel& bound) { EXPECT_THAT(bound.statistics, Each(Eq(std::nullopt))); });
  }
}

TEST(BindModel, RefusesAModelWithOtherParametersThanThePlanLists) {
  const PlannedModel planned = planned_model("mlp", kTiny, 2);
  Plan plan = cut_plan(planned, {2}, {1, 1}, "1f1b", 2);
  list_parameters(planned.graph, plan);
  EXPECT_THAT(plan.stages[1].parameters.front(), (PlanTensor{"fc2", {"fc2.weight", {3, 8}, "float32"}}));
  EXPECT_NO_THROW(bind(plan, planned.model));
  const auto refuses = [&](const std::string& message) {
    EXPECT_THAT([&] { bind(plan, planned.model); },
                ThrowsMessage<std::invalid_argument>("layer \"fc2\" of model \"mlp\" has " + message +
                                                     "; profile and plan the model again"));
  };
  plan.stages[1].parameters.front().tensor.shape = {3, 9};
  refuses("\"fc2.weight\" (float32 [3, 8]), the plan lists \"fc2.weight\" (float32 [3, 9])");
  plan.stages[1].parameters.erase(plan.stages[1].parameters.begin());
  refuses("\"fc2.weight\" (float32 [3, 8]), the plan lists \"fc2.bias\" (float32 [3])");
  plan = cut_plan(planned, {2}, {1, 1}, "1f1b", 2);
  list_parameters(planned.graph, plan);
  plan.stages[1].exchanged_buffers = {{"fc2", {"mean", {}, "float32"}}};
  refuses("nothing more, the plan lists \"mean\" (float32 [])");
  for (Stage& stage : plan.stages) stage.parameters = stage.exchanged_buffers = {};
  EXPECT_NO_THROW(bind(plan, planned.model)) << "plans of older versions list nothing";
}

TEST(ComputePlace, HasThePlansTypesAndRefusesParametersThatItDoesNotComputeWith) {
  Plan plan = cut_plan(planned_model("mlp", kTiny, 2), {2}, {1, 1}, "1f1b", 2);
  plan.types.parameters = StateType::Bfloat16;
  plan.dtype = "bfloat16";
  EXPECT_EQ(compute_place(plan, c10::Device(c10::kCPU)).types, plan.types);
  EXPECT_EQ(with_types({}, plan).types, plan.types);
  plan.dtype.clear();
  EXPECT_THAT(
      [&] { (void)compute_place(plan, c10::Device(c10::kCPU)); },
      ThrowsMessage<std::invalid_argument>("parameters in bfloat16 need a computation in bfloat16, found float32"));
}

TEST(BindModel, RefusesMicrobatchesThatTheModelDoesNotRunWith) {
  PlannedModel planned = planned_model("mlp", kTiny, 4);
  planned.model.name = "model.pt2";
  planned.model.least_samples = planned.model.most_samples = 8;
  const Plan plan = cut_plan(planned, {2}, {1, 1}, "1f1b", 2);
  EXPECT_THAT([&] { bind(plan, planned.model); },
              ThrowsMessage<std::invalid_argument>("model.pt2 was exported for a microbatch of 8, found 4; export it "
                                                   "with a dynamic batch size, or use microbatches of 8"));
  planned.model.least_samples = 5;
  EXPECT_THAT([&] { bind(plan, planned.model); },
              ThrowsMessage<std::invalid_argument>("model.pt2 was exported for a microbatch of 5 to 8, found 4"));
  planned.model.least_samples = 4;
  EXPECT_NO_THROW(bind(plan, planned.model));
}

TEST(BindModel, RefusesAPlanThatDoesNotListWhatTheModelsLayersShare) {
  const PlannedModel gpt = planned_model(
      "gpt", {{"layers", "1"}, {"width", "8"}, {"heads", "1"}, {"vocabulary", "16"}, {"sequence", "4"}}, 2);
  Plan plan = cut_plan(gpt, {1}, {1, 1}, "1f1b", 2);
  ASSERT_EQ(plan.tied.size(), 1U);
  const TiedLayers tied = plan.tied.front();
  EXPECT_NO_THROW(bind(plan, gpt.model));
  plan.tied.clear();
  EXPECT_THAT([&] { bind(plan, gpt.model); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("share parameter \"" + tied.parameter +
                            "\", which the plan does not list as tied; profile and plan the model again")));
  plan.schedule = "forward";  // no gradients are reduced
  EXPECT_NO_THROW(bind(plan, gpt.model));
}

TEST(BindModel, RefusesAPlanThatTiesWhatTheModelDoesNot) {
  const PlannedModel planned = planned_model("mlp", kTiny, 2);
  Plan plan = cut_plan(planned, {2}, {1, 1}, "1f1b", 2);
  plan.tied = {{"fc1.weight", {"fc1", "fc2"}}};
  EXPECT_THAT([&] { bind(plan, planned.model); },
              ThrowsMessage<std::invalid_argument>("the plan lists parameter \"fc1.weight\" as tied, but model \"mlp\" "
                                                   "does not have it in two layers; profile and plan the model again"));
}

}  // namespace
}  // namespace stagecraft::run
