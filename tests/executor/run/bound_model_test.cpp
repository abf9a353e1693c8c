#include "executor/run/bound_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "executor/model/stage_layers.h"
#include "executor/run/run.h"
#include "tests/support/planned_models.h"

namespace stagecraft::run {
namespace {

using stagecraft::testing::cut_plan;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::map<std::string, std::string> kTiny{{"inputs", "4"}, {"width", "8"}, {"layers", "2"}, {"classes", "3"}};

void bind(const Plan& plan, const model::Model& model) {
  const BoundPlan bound(plan);
  (void)bind_model(bound, model);
}

/// A tiny mlp whose fc2 writes its buffer "fc2.state" as it likes; cut before fc2.
PlannedModel with_a_written_buffer() {
  PlannedModel planned = planned_model("mlp", kTiny, 2);
  planned.model.layers[2].parameters.push_back(
      {.name = "fc2.state", .shape = {1}, .trainable = false, .written = true});
  return planned;
}

TEST(BindModel, RefusesReplicasOfABufferThatNobodyCanReplay) {
  const PlannedModel planned = with_a_written_buffer();
  const std::string refusal =
      "layer \"fc2\" writes its buffer \"fc2.state\" in a way that replicas cannot replay; plan stage 1 without "
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
  plan.schedule = "forward";  // which adds up no gradients
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

TEST(CheckSamples, NamesABoundOnOneSideAlone) {
  model::Model model = intake::build_model("mlp", kTiny);
  model.least_samples = 2;
  EXPECT_NO_THROW(model::check_samples(model, 2));
  EXPECT_NO_THROW(model::check_samples(model, 1 << 20));
  EXPECT_THAT([&] { model::check_samples(model, 1); },
              ThrowsMessage<std::invalid_argument>("mlp was exported for a microbatch of 2 or more, found 1"));
}

TEST(CheckSamples, KeepsAProfileFromStarting) {
  model::Model model = intake::build_model("mlp", kTiny);
  model.most_samples = 1;
  EXPECT_THAT([&] { (void)planned_model(model, 2); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("exported for a microbatch of 1, found 2")));
}

TEST(LayersOfStages, SaysWhatBecameOfALayerThatCouldNotStandAlone) {
  PlannedModel planned = planned_model("mlp", kTiny, 2);
  Plan plan = cut_plan(planned, {2}, {1, 1}, "1f1b", 2);
  plan.stages[1].layers.push_back("norm");
  EXPECT_THAT([&] { (void)model::layers_of_stages(plan, planned.model); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("model \"mlp\": unknown layer \"norm\"")));
  planned.model.merged["norm"] = "is part of \"fc2\", whose buffer it writes";
  EXPECT_THAT(
      [&] { (void)model::layers_of_stages(plan, planned.model); },
      ThrowsMessage<std::invalid_argument>("model \"mlp\": layer \"norm\" is part of \"fc2\", whose buffer it writes"));
}

}  // namespace
}  // namespace stagecraft::run
