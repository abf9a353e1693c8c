#include "executor/model/stage_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support/models/planned_models.h"

namespace stagecraft::model {
namespace {

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
