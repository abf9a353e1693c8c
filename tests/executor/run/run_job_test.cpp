#include "executor/run/run_job.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "costmodel/format/plan_json.h"
#include "executor/files/safetensors.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/run_command.h"

namespace stagecraft::run {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A small mlp in two stages of 4 microbatches of 3 samples, and 25 samples of data in a file.
class RunJobs : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    planned_ = new testing::PlannedModel(testing::planned_model("mlp", {{"inputs", "12"}, {"width", "16"}}, 3));
  }
  static void TearDownTestSuite() { delete planned_; }
  RunJobs() {
    (void)files::write_safetensors(at("data.safetensors"),
                                   {{"image", at::ones({25, 12})}, {"target", at::zeros({25}, at::kLong)}});
  }
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string data() const { return "tensors:" + at("data.safetensors"); }
  JobRequest request(const std::string& schedule, const std::string& data) const {
    folder_.write("plan.json", format::plan_json(testing::cut_plan(*planned_, {3}, {1, 1}, schedule, 4)));
    return {.plan = at("plan.json"), .data = data};
  }

  static testing::PlannedModel* planned_;
  testing::CommandFolder folder_;
};
testing::PlannedModel* RunJobs::planned_ = nullptr;

TEST_F(RunJobs, BuildThePlansModelWithTheSettingsOnTop) {
  JobRequest wanted = request("1f1b", "synthetic");
  EXPECT_EQ(RunJob(wanted).ranks(), 2);
  std::vector<std::string> built;
  wanted.settings = {{"width", "16"}};
  wanted.build = [&](const std::string& name, const intake::ModelSettings& settings, model::ModelMode mode) {
    built.push_back(name + " " + settings.at("inputs") + " " + settings.at("width"));
    return intake::build_model(name, settings, mode);
  };
  (void)RunJob(wanted);
  EXPECT_THAT(built, ::testing::ElementsAre("mlp 12 16"));
}

// 25 samples an epoch, 12 a step: two epochs are 50 samples, or 4 steps and a sixth.
TEST_F(RunJobs, CountTheStepsOfEpochsRoundedUp) {
  const RunJob job(request("1f1b", data()));
  EXPECT_EQ(steps_of_epochs(job, 1), 3);
  EXPECT_EQ(steps_of_epochs(job, 2), 5);
  EXPECT_EQ(steps_of_epochs(job, 12), 25);
  EXPECT_THAT([&] { (void)steps_of_epochs(RunJob(request("1f1b", "synthetic")), 1); },
              ThrowsMessage<std::invalid_argument>("data source \"synthetic\" is endless; use --steps"));
  EXPECT_THAT([&] { (void)steps_of_epochs(RunJob(request("forward", data())), 1); },
              ThrowsMessage<std::invalid_argument>("schedule \"forward\" goes through the data once"));
}

// 25 samples are 8 microbatches of 3, or 2 steps of 4, and one sample more.
TEST_F(RunJobs, PassOnceOverTheDataIfThePlanOnlyEvaluates) {
  const RunJob job(request("forward", data()));
  ASSERT_TRUE(job.pass);
  EXPECT_EQ(job.pass->microbatches, 8);
  EXPECT_EQ(job.pass->steps, 2);
  EXPECT_EQ(job.pass->samples_left, 1);
  EXPECT_FALSE(RunJob(request("1f1b", data())).pass);
}

TEST_F(RunJobs, ValidateOnDataThatEndAndFillAMicrobatch) {
  const auto validating = [&](const std::string& schedule, const std::string& validation) {
    JobRequest out = request(schedule, "synthetic");
    out.validation = validation;
    return out;
  };
  const RunJob fits(validating("1f1b", data()));
  EXPECT_TRUE(fits.evaluated);
  EXPECT_NE(fits.validation, nullptr);
  check_validation(fits, std::nullopt);
  check_validation(RunJob(request("forward", "synthetic")), std::nullopt);
  const auto refuses = [&](const JobRequest& wanted, std::optional<std::int64_t> samples, const std::string& message) {
    const RunJob job(wanted);
    EXPECT_THAT([&] { check_validation(job, samples); }, ThrowsMessage<std::invalid_argument>(HasSubstr(message)));
  };
  refuses(validating("forward", data()), std::nullopt, "schedule \"forward\" trains nothing");
  refuses(validating("1f1b", "synthetic"), std::nullopt,
          "data source \"synthetic\" is endless; use --validate-samples");
  refuses(validating("1f1b", "synthetic"), 2, "2 samples do not fill one microbatch of 3");
}

TEST_F(RunJobs, ValidateAsynchronousPipelinesOnlyAtTheEnd) {
  JobRequest wanted = request("pipedream", "synthetic");
  check_validation_steps(RunJob(wanted), 2, 10);  // does not validate at all
  wanted.validation = data();
  const RunJob job(wanted);
  check_validation_steps(job, 0, 10);
  check_validation_steps(job, 10, 10);
  EXPECT_THAT([&] { check_validation_steps(job, 2, 10); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("schedule \"pipedream\" is asynchronous")));
}

TEST_F(RunJobs, HaveWeightsOfTheirModel) {
  (void)files::write_safetensors(at("other.safetensors"), {{"nothing.weight", at::ones({1})}});
  RunOptions options;
  const RunJob job(request("1f1b", "synthetic"));
  check_state(job, options);
  options.checkpoint.weights = at("other.safetensors");
  EXPECT_THAT([&] { check_state(job, options); }, ThrowsMessage<FormatError>(HasSubstr("nothing.weight")));
}

}  // namespace
}  // namespace stagecraft::run
