#include "executor/run/planned_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "executor/run/run.h"
#include "tests/support/planned_models.h"

namespace stagecraft {
namespace {

using stagecraft::testing::cut_plan;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::map<std::string, std::string> kTiny{{"inputs", "4"}, {"width", "8"}, {"layers", "2"}, {"classes", "3"}};

/// A tiny mlp whose fc2 writes its buffer "fc2.state" as it likes; cut before fc2.
PlannedModel with_a_written_buffer() {
  PlannedModel planned = planned_model("mlp", kTiny, 2);
  planned.model.layers[2].parameters.push_back(
      {.name = "fc2.state", .shape = {1}, .trainable = false, .written = true});
  return planned;
}

TEST(CheckFits, RefusesReplicasOfABufferThatNobodyCanReplay) {
  const PlannedModel planned = with_a_written_buffer();
  const std::string refusal =
      "layer \"fc2\" writes its buffer \"fc2.state\" in a way that replicas cannot replay; plan stage 1 without "
      "replicas";
  const Plan replicated = cut_plan(planned, {2}, {1, 2}, "1f1b", 2);
  EXPECT_THAT([&] { verify_lists(replicated, planned.model, 1); }, ThrowsMessage<std::invalid_argument>(refusal));
  EXPECT_THAT([&] { (void)run_local(replicated, planned.model, *planned.data, {}, std::chrono::milliseconds(5000)); },
              ThrowsMessage<std::invalid_argument>(refusal));
}

TEST(CheckFits, AllowsThemElsewhereAndWhereEachReplicaKeepsItsOwn) {
  const PlannedModel planned = with_a_written_buffer();
  EXPECT_NO_THROW(verify_lists(cut_plan(planned, {2}, {2, 1}, "1f1b", 2), planned.model, 1));
  EXPECT_NO_THROW(verify_lists(cut_plan(planned, {2}, {1, 2}, "pipedream", 2), planned.model, 1));
}

TEST(CheckFits, RefusesMicrobatchesThatTheModelDoesNotRunWith) {
  PlannedModel planned = planned_model("mlp", kTiny, 4);
  planned.model.name = "model.pt2";
  planned.model.least_samples = planned.model.most_samples = 8;
  const Plan plan = cut_plan(planned, {2}, {1, 1}, "1f1b", 2);
  EXPECT_THAT([&] { verify_lists(plan, planned.model, 1); },
              ThrowsMessage<std::invalid_argument>(
                  "model.pt2 was exported for 8 samples a microbatch, found 4; export it with a dynamic batch or plan "
                  "with microbatches of 8"));
  planned.model.least_samples = 5;
  EXPECT_THAT([&] { verify_lists(plan, planned.model, 1); },
              ThrowsMessage<std::invalid_argument>("model.pt2 was exported for 5 to 8 samples a microbatch, found 4"));
  planned.model.least_samples = 4;
  EXPECT_NO_THROW(verify_lists(plan, planned.model, 1));
}

TEST(CheckSamples, NamesABoundOnOneSideAlone) {
  Model model = build_model("mlp", kTiny);
  model.least_samples = 2;
  EXPECT_NO_THROW(check_samples(model, 2));
  EXPECT_NO_THROW(check_samples(model, 1 << 20));
  EXPECT_THAT([&] { check_samples(model, 1); },
              ThrowsMessage<std::invalid_argument>("mlp was exported for 2 or more samples a microbatch, found 1"));
}

TEST(CheckSamples, KeepsAProfileFromStarting) {
  Model model = build_model("mlp", kTiny);
  model.most_samples = 1;
  EXPECT_THAT([&] { (void)planned_model(model, 2); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("exported for 1 samples a microbatch, found 2")));
}

TEST(LayersOfStages, SaysWhatBecameOfALayerThatCouldNotStandAlone) {
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
}  // namespace stagecraft
