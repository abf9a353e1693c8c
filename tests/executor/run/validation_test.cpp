#include "executor/run/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <numeric>

#include "costmodel/format/files/files.h"
#include "costmodel/index.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/run/run.h"
#include "tests/support/models/finite_data.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/run_command.h"

namespace stagecraft::run {
namespace {

namespace fs = std::filesystem;

using stagecraft::testing::cut_plan;
using stagecraft::testing::Finite;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

constexpr std::uint64_t kSeed = 4;

/// Validation on 15 samples of other data than the training's: 7 microbatches of 2, which end in the middle of a step.
class ValidationTest : public ::testing::Test {
 protected:
  explicit ValidationTest(PlannedModel model) : planned_(std::move(model)) {
    endless_ = data::make_data_source("synthetic", planned_.model, kSeed + 1);
    other_.emplace(*endless_, 15);
  }

  RunResult train(const Plan& plan, const std::string& folder, std::int64_t every, bool validate) {
    RunOptions options;
    options.steps = 4;
    options.seed = kSeed;
    options.optimizer = {.name = "adam", .learning_rate = 0.01};
    options.checkpoint.folder = place(folder);
    options.checkpoint.every = 2;
    options.checkpoint.data = "synthetic";
    if (validate) options.validation = {&*other_, &planned_.model, every};
    return run_local(plan, planned_.model, *planned_.data, options, milliseconds(60000));
  }

  /// The bytes of the checkpoint's tensors.
  [[nodiscard]] std::string state(const std::string& folder, std::int64_t step) const {
    std::string out;
    for (const auto& path : checkpoint::file_paths(
             checkpoint::checkpoint_at(checkpoint::checkpoint_path(place(folder), step), [](const auto&) {})))
      out += format::read_text(path);
    return out;
  }

  /// What `evaluate` finds for a checkpoint in one process.
  [[nodiscard]] format::ModelEvaluation evaluated(const std::string& folder, std::int64_t step) const {
    std::vector<int> layers(planned_.model.layers.size());
    std::iota(layers.begin(), layers.end(), 0);
    stage::StageProgram program(planned_.model, layers, {}, {}, kSeed);
    const files::TensorFiles files(checkpoint::file_paths(
        checkpoint::checkpoint_at(checkpoint::checkpoint_path(place(folder), step), [](const auto&) {})));
    checkpoint::load_weights(files, program);
    return evaluate(program, planned_.model, *other_, evaluation_pieces(*other_, 2, std::nullopt), [] { return 0.0; });
  }

  [[nodiscard]] std::string place(const std::string& folder) const { return (files_.path() / folder).string(); }

  PlannedModel planned_;
  std::unique_ptr<data::DataSource> endless_;
  std::optional<Finite> other_;
  testing::CommandFolder files_;
};

/// With batch norm, whose buffers training changes.
class ValidationOfResnet : public ValidationTest {
 protected:
  ValidationOfResnet() : ValidationTest(planned_model("resnet18", {{"image", "32"}}, 2)) {}
};

/// With dropout, which draws random numbers in training, and several labels per sample.
class ValidationOfTransformer : public ValidationTest {
 protected:
  ValidationOfTransformer()
      : ValidationTest(planned_model("transformer",
                                     {{"layers", "2"},
                                      {"width", "16"},
                                      {"heads", "2"},
                                      {"vocabulary", "16"},
                                      {"feedforward", "8"},
                                      {"sequence", "4"},
                                      {"dropout_percent", "20"}},
                                     2)) {}
};

TEST_F(ValidationOfTransformer, ChangesNothingAndFindsWhatEvaluateFindsUnderEverySchedule) {
  const int half = to_int(planned_.model.layers.size()) / 2;
  for (const auto& [schedule, replicas] :
       std::vector<std::pair<std::string, std::vector<int>>>{{"gpipe", {1, 1}},
                                                             {"1f1b", {1, 1}},
                                                             {"1f1b", {1, 3}},
                                                             {"zb-h1", {1, 1}},
                                                             {"pipedream", {1, 1}},
                                                             {"pipedream-2bw", {2, 1}}}) {
    const std::string name = schedule + std::to_string(replicas.back());
    SCOPED_TRACE(name);
    const Plan plan = cut_plan(planned_, {half}, replicas, schedule, 4);
    const bool drains = !BoundPlan(plan).asynchronous();
    const RunResult plain = train(plan, name + "plain", 0, false);
    const RunResult validated = train(plan, name, 2, true);
    EXPECT_EQ(validated.measurement.losses, plain.measurement.losses);
    EXPECT_EQ(state(name, 4), state(name + "plain", 4));
    EXPECT_TRUE(plain.validations.empty());
    ASSERT_EQ(validated.validations.size(), drains ? 2 : 1);
    for (const auto& [done, found] : validated.validations) {
      const format::ModelEvaluation expected = evaluated(name, done);
      EXPECT_EQ(found.loss, expected.loss);
      EXPECT_EQ(found.samples, 14);
      EXPECT_EQ(found.samples_left, 1);
      EXPECT_EQ(found.predictions, expected.predictions);
      EXPECT_EQ(found.correct, expected.correct);
      ASSERT_TRUE(found.perplexity);
      EXPECT_NEAR(*found.perplexity, *expected.perplexity, 1e-12 * *expected.perplexity) << "sums by rank";
    }
  }
}

TEST_F(ValidationOfResnet, LeavesMovingStatisticsAsTheyAre) {
  const Plan plan = cut_plan(planned_, {to_int(planned_.model.layers.size()) / 2}, {2, 1}, "1f1b", 4);
  const RunResult plain = train(plan, "plain", 0, false);
  const RunResult validated = train(plan, "validated", 1, true);
  EXPECT_EQ(validated.measurement.losses, plain.measurement.losses);
  EXPECT_EQ(state("validated", 4), state("plain", 4));
  ASSERT_EQ(validated.validations.size(), 4);
  const format::ModelEvaluation expected = evaluated("validated", 2);
  EXPECT_EQ(validated.validations.at(2).loss, expected.loss);
  EXPECT_EQ(validated.validations.at(2).correct, expected.correct);
  EXPECT_EQ(validated.validations.at(2).perplexity, std::nullopt) << "one prediction per sample";
}

TEST_F(ValidationOfTransformer, RunsTheForwardsOfStagesThatShareARank) {
  Partition partition;
  const int inputs = to_int(planned_.model.inputs.size());
  const int layers = to_int(planned_.graph.layers.size()) - inputs;
  for (int i = 0; i < inputs; ++i) partition.stage_of_layer.push_back(-1);
  for (int i = 0; i < layers; ++i) partition.stage_of_layer.push_back(4 * i / layers);
  partition.replicas = {1, 1, 1, 1};
  PlanSettings settings;
  settings.microbatches = 4;
  settings.schedule = "interleaved-1f1b";
  settings.chunks = 2;
  const Plan plan = make_plan(planned_.graph, stagecraft::testing::flat_topology(2), partition, settings);
  const RunResult found = train(plan, "chunks", 0, true);
  EXPECT_EQ(found.validations.at(4).loss, evaluated("chunks", 4).loss);
}

TEST(ForwardPlan, KeepsTheForwardsInTheirOrder) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "4"}, {"width", "8"}, {"layers", "2"}}, 2);
  const Plan forward = forward_plan(BoundPlan(cut_plan(planned, {2}, {1, 1}, "1f1b", 3)));
  EXPECT_EQ(forward.schedule, "listed");
  for (std::size_t rank = 0; rank < 2; ++rank) {
    std::vector<std::string> texts;
    for (const Action& action : forward.listed[rank]) texts.push_back(action_text(action));
    const std::string stage = std::to_string(rank);
    EXPECT_THAT(texts, ElementsAre(stage + "F0", stage + "F1", stage + "F2"));
  }
  EXPECT_FALSE(BoundPlan(forward).schedule().trains);
  verify_lists(BoundPlan(forward), 1);
}

TEST(ValidationOptions, AreCheckedBeforeTheFirstStep) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "4"}, {"width", "8"}, {"layers", "2"}}, 2);
  RunOptions options;
  options.steps = 1;
  options.validation = {planned.data.get(), &planned.model, 1, 1};
  EXPECT_THAT(
      [&] {
        (void)run_local(cut_plan(planned, {2}, {1, 1}, "1f1b", 2), planned.model, *planned.data, options,
                        milliseconds(60000));
      },
      ThrowsMessage<std::invalid_argument>("1 samples do not fill one microbatch of 2"));
}

}  // namespace
}  // namespace stagecraft::run
