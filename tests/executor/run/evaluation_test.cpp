#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <numeric>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/index.h"
#include "executor/run/run.h"
#include "executor/run/run_report.h"
#include "tests/support/models/finite_data.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/run_command.h"

// Plans with the schedule "forward".

namespace stagecraft::run {
namespace {

namespace fs = std::filesystem;

using stagecraft::testing::cut_plan;
using stagecraft::testing::even_cuts;
using stagecraft::testing::Finite;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::ThrowsMessage;

constexpr std::uint64_t kSeed = 4;

RunOptions options_for(std::int64_t steps) {
  RunOptions out;
  out.steps = steps;
  out.seed = kSeed;
  return out;
}

/// Losses of the microbatches of a model without stages, computed as in training or in evaluation.
std::vector<double> losses_of(const PlannedModel& planned, const data::DataSource& data, bool training, int count,
                              std::int64_t samples) {
  std::vector<int> layers(planned.model.layers.size());
  std::iota(layers.begin(), layers.end(), 0);
  stage::StageProgram program(planned.model, layers, {}, {}, kSeed);
  if (!training) program.evaluate();
  std::vector<double> out;
  for (int m = 0; m < count; ++m) {
    const stage::Flight flight =
        program.forward({}, data.batch(0, m, count, samples, program.data_inputs()), 0, m, false);
    out.push_back(flight.loss.item<double>());
  }
  return out;
}

TEST(Evaluation, IsInEvaluationModeUnderEveryPlan) {
  for (const auto& [name, set] :
       std::vector<std::pair<std::string, std::map<std::string, std::string>>>{{"convnet", {{"channels", "4"}}},
                                                                               {"gnmt",
                                                                                {{"hidden", "8"},
                                                                                 {"layers", "3"},
                                                                                 {"vocabulary", "16"},
                                                                                 {"source_sequence", "5"},
                                                                                 {"target_sequence", "4"}}},
                                                                               {"transformer",
                                                                                {{"layers", "2"},
                                                                                 {"width", "16"},
                                                                                 {"heads", "2"},
                                                                                 {"vocabulary", "16"},
                                                                                 {"feedforward", "8"},
                                                                                 {"sequence", "4"},
                                                                                 {"dropout_percent", "20"}}}}) {
    const PlannedModel planned = planned_model(name, set, 2);
    const int layers = to_int(planned.model.layers.size());
    const Finite data(*planned.data, 24);
    const std::vector<double> expected = losses_of(planned, data, false, 12, 2);
    EXPECT_NE(expected, losses_of(planned, data, true, 12, 2)) << name << " computes the same in training";
    for (const std::vector<int>& replicas : std::vector<std::vector<int>>{{1}, {1, 1}, {2, 1}, {1, 3}}) {
      const Plan plan = cut_plan(planned, even_cuts(layers, to_int(replicas.size())), replicas, "forward", 4);
      const RunResult result = run_local(plan, planned.model, data, options_for(3), milliseconds(60000));
      ASSERT_TRUE(result.evaluation);
      EXPECT_EQ(result.evaluation->microbatches, 12) << name;
      EXPECT_EQ(result.evaluation->loss, std::accumulate(expected.begin(), expected.end(), 0.0) / 12) << name;
    }
  }
}

TEST(Evaluation, TakesEverySampleOnceAndSaysWhatFillsNoMicrobatch) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "4"}, {"width", "8"}, {"layers", "2"}}, 2);
  const Finite data(*planned.data, 11);
  const Plan plan = cut_plan(planned, {2}, {1, 1}, "forward", 3);
  const auto pass = whole_pass(plan, data);
  ASSERT_TRUE(pass);
  EXPECT_EQ(pass->microbatches, 5);
  EXPECT_EQ(pass->steps, 2);
  EXPECT_EQ(pass->samples_left, 1);
  const std::vector<double> alone = losses_of(planned, data, false, 5, 2);
  const RunResult result = run_local(plan, planned.model, data, options_for(100), milliseconds(60000));
  EXPECT_EQ(result.evaluation->microbatches, 5);
  EXPECT_EQ(result.evaluation->loss, std::accumulate(alone.begin(), alone.end(), 0.0) / 5);
  EXPECT_THAT(result.measurement.losses, ElementsAre((alone[0] + alone[1] + alone[2]) / 3, (alone[3] + alone[4]) / 2));
  EXPECT_THAT(evaluation_text(*result.evaluation, 2, pass),
              MatchesRegex("loss [0-9.]+ over 10 of 11 samples; 1 left over, too few for a microbatch of 2"));
  const RunResult part = run_local(plan, planned.model, data, options_for(1), milliseconds(60000));
  EXPECT_EQ(part.evaluation->loss, (alone[0] + alone[1] + alone[2]) / 3);
  EXPECT_THAT(evaluation_text(*part.evaluation, 2, pass), MatchesRegex("loss [0-9.]+ over 6 of 11 samples"));
  EXPECT_THAT([&] { (void)whole_pass(plan, Finite(*planned.data, 1)); },
              ThrowsMessage<std::invalid_argument>("the data has 1 samples, fewer than one microbatch of 2"));
}

TEST(Evaluation, OfEndlessDataRunsTheRequestedSteps) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "4"}, {"width", "8"}, {"layers", "2"}}, 2);
  const Plan plan = cut_plan(planned, {2}, {1, 1}, "forward", 3);
  EXPECT_FALSE(whole_pass(plan, *planned.data));
  const RunResult result = run_local(plan, planned.model, *planned.data, options_for(4), milliseconds(60000));
  EXPECT_EQ(result.evaluation->microbatches, 12);
  EXPECT_THAT(evaluation_text(*result.evaluation, 2, {}), MatchesRegex("loss [0-9.]+ over 24 samples"));
}

/// Names and bytes of all files under `folder`.
std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) out[entry.path().string()] = format::read_text(entry.path().string());
  }
  return out;
}

TEST(Evaluation, OfACheckpointChangesNothing) {
  const testing::CommandFolder files;
  const std::string folder = (files.path() / "saved").string();
  const PlannedModel planned = planned_model("convnet", {{"channels", "4"}}, 2);
  const int half = to_int(planned.model.layers.size()) / 2;
  RunOptions training = options_for(3);
  training.optimizer.momentum = 0.9;
  training.checkpoint.folder = folder;
  training.checkpoint.resume = true;
  training.checkpoint.data = "synthetic";
  (void)run_local(cut_plan(planned, {half}, {1, 1}, "1f1b", 2), planned.model, *planned.data, training,
                  milliseconds(60000));
  const auto before = contents(folder);
  const Finite data(*planned.data, 12);
  // A different optimizer, seed, data source and step count than in the training.
  RunOptions options = options_for(6);
  options.seed = kSeed + 1;
  options.checkpoint = training.checkpoint;
  options.checkpoint.every = 1;
  options.checkpoint.data = "elsewhere";
  std::string told;
  options.checkpoint.tell = [&](const std::string& text) { told += text; };
  const Plan plan = cut_plan(planned, {half}, {2, 1}, "forward", 3);
  const RunResult first = run_local(plan, planned.model, data, options, milliseconds(60000));
  EXPECT_EQ(first.evaluation->microbatches, 6);
  EXPECT_EQ(told, "evaluating " + folder + "/step-3");
  EXPECT_EQ(contents(folder), before);
  EXPECT_EQ(run_local(plan, planned.model, data, options, milliseconds(60000)).evaluation->loss,
            first.evaluation->loss);
  options.checkpoint.resume = false;
  EXPECT_THAT([&] { (void)run_local(plan, planned.model, data, options, milliseconds(60000)); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("does not train and writes no checkpoints")));
  options.checkpoint.resume = true;
  options.checkpoint.folder = folder + "-not-there";
  EXPECT_THAT([&] { (void)run_local(plan, planned.model, data, options, milliseconds(60000)); },
              ThrowsMessage<FormatError>(folder + "-not-there: no complete checkpoint to evaluate"));
  EXPECT_FALSE(fs::exists(folder + "-not-there"));
}

}  // namespace
}  // namespace stagecraft::run
