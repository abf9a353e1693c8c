#include "executor/run/evaluation.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace stagecraft::run {
namespace {

using format::evaluation_json;
using format::ModelEvaluation;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kClasses = 3;
constexpr std::int64_t kPositions = 2;
const double kAny = std::log(std::exp(1.0) + 2);  // of a prediction that is wrong; of one that is right, 1 less

/// Sample i has the scores 1 for class i % 3 and 0 for the others, at each of two positions, and the target 0, which
/// is ignored at the second position of odd samples.
class Scores : public data::DataSource {
 public:
  explicit Scores(std::optional<std::int64_t> samples) : samples_(samples) {}
  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    at::Tensor scores = at::zeros({samples, kClasses, kPositions});
    at::Tensor target = at::zeros({samples, kPositions}, at::kLong);
    for (std::int64_t i = 0; i < samples; ++i) {
      const std::int64_t sample = (step * microbatches + microbatch) * samples + i;
      scores[i][sample % kClasses].fill_(1);
      if (sample % 2 == 1) target[i][1].fill_(-100);
    }
    std::vector<at::Tensor> out;
    for (const int input : inputs) out.push_back(input == 0 ? scores : target);
    return out;
  }
  std::optional<std::int64_t> samples() const override { return samples_; }

 private:
  std::optional<std::int64_t> samples_;
};

using Loss = std::function<at::Tensor(const at::Tensor& scores, const at::Tensor& target)>;

/// A model of one layer, its loss.
model::Model model_with(Loss loss) {
  model::Model out;
  out.name = "scores";
  out.inputs = {{"scores", "float32", {kClasses, kPositions}}, {"target", "int64", {kPositions}, kClasses}};
  out.layers = {{.name = "loss",
                 .kind = "CrossEntropyLoss",
                 .inputs = {{-1, 0, 0}, {-1, 0, 1}},
                 .parameters = {},
                 .forward = [loss = std::move(loss)](const model::LayerCall& call) -> std::vector<at::Tensor> {
                   return {loss(call.inputs[0], call.inputs[1])};
                 }}};
  return out;
}

ModelEvaluation evaluated(const Loss& loss, const EvaluationPieces& pieces) {
  const model::Model model = model_with(loss);
  stage::StageProgram program(model, {0}, {}, {}, 1);
  double now = 0;
  return evaluate(program, model, Scores(7), pieces, [&] { return now += 2; });
}

TEST(Evaluate, CountsTheRightPredictionsOfClasses) {
  const ModelEvaluation found = evaluated(
      [](const at::Tensor& x, const at::Tensor& y) { return at::cross_entropy_loss(x.select(2, 0), y.select(1, 0)); },
      {.microbatch_samples = 2, .microbatches = 3, .samples_left = 1});
  // Of the samples 0 to 5, 0 and 3 are right.
  EXPECT_NEAR(found.loss, kAny - 2.0 / 6, 1e-6);
  EXPECT_EQ(found.samples, 6);
  EXPECT_EQ(found.predictions, 6);
  EXPECT_EQ(found.correct, 2);
  EXPECT_EQ(found.perplexity, std::nullopt) << "one prediction per sample";
  EXPECT_EQ(found.time, Seconds(2));
  EXPECT_THAT(
      evaluation_text(found),
      HasSubstr(", accuracy 0.3333 (2 of 6), 6 of 7 samples (1 left over, too few for a microbatch), 3.0 samples/s"));
}

TEST(Evaluate, WeighsPerplexityByTokens) {
  // Samples 0 and 1 have 2 + 1 tokens, 2 of them right: 0 twice. Samples 2 and 3 have 2 + 1, 1 right: 3 once.
  const ModelEvaluation found =
      evaluated([](const at::Tensor& x, const at::Tensor& y) { return at::cross_entropy_loss(x, y); },
                {.microbatch_samples = 2, .microbatches = 2});
  EXPECT_EQ(found.predictions, 6);
  EXPECT_EQ(found.correct, 3);
  ASSERT_TRUE(found.perplexity);
  EXPECT_NEAR(*found.perplexity, std::exp(kAny - 3.0 / 6), 1e-5);
  EXPECT_THAT(evaluation_text(found), HasSubstr(", perplexity "));
}

TEST(Evaluate, HasNoPerplexityWithWeightsOrSmoothing) {
  const EvaluationPieces pieces{.microbatch_samples = 2, .microbatches = 2};
  const ModelEvaluation weighted = evaluated(
      [](const at::Tensor& x, const at::Tensor& y) { return at::cross_entropy_loss(x, y, at::full({kClasses}, 2.0)); },
      pieces);
  const ModelEvaluation smooth =
      evaluated([](const at::Tensor& x,
                   const at::Tensor& y) { return at::cross_entropy_loss(x, y, {}, at::Reduction::Mean, -100, 0.1); },
                pieces);
  for (const ModelEvaluation& evaluation : {weighted, smooth}) {
    EXPECT_EQ(evaluation.correct, 3);
    EXPECT_EQ(evaluation.perplexity, std::nullopt);
  }
}

TEST(Evaluate, HasNoAccuracyWithSeveralLossesOrOther) {
  const EvaluationPieces pieces{.microbatch_samples = 2, .microbatches = 2};
  for (const Loss& loss :
       std::vector<Loss>{[](const at::Tensor& x, const at::Tensor& y) {
                           return at::cross_entropy_loss(x, y).add(at::cross_entropy_loss(x, y));
                         },
                         [](const at::Tensor& x, const at::Tensor&) { return at::cross_entropy_loss(x, x.softmax(1)); },
                         [](const at::Tensor& x, const at::Tensor&) { return x.mean(); }}) {
    const ModelEvaluation found = evaluated(loss, pieces);
    EXPECT_EQ(found.predictions, std::nullopt);
    EXPECT_EQ(accuracy(found), std::nullopt);
    EXPECT_THAT(evaluation_json(found, {}), ::testing::Not(HasSubstr("accuracy")));
  }
}

TEST(EvenMicrobatch, IsTheLargestDivisorFromAQuarterOfTheUsualToTheUsual) {
  EXPECT_EQ(even_microbatch(64, 32, 1), 32);
  EXPECT_EQ(even_microbatch(60, 32, 1), 30);
  EXPECT_EQ(even_microbatch(88, 32, 1), 22);
  EXPECT_EQ(even_microbatch(104, 25, 1), 13);
  EXPECT_EQ(even_microbatch(10, 32, 1), 10) << "all at once";
  EXPECT_EQ(even_microbatch(7, 32, 1), 7) << "also less than a quarter";
  EXPECT_EQ(even_microbatch(49, 25, 1), 7) << "a quarter of 25 is 6.25";
  EXPECT_EQ(even_microbatch(36, 25, 13), 18);
}

TEST(EvenMicrobatch, IsTheUsualIfNoDivisorIsLargeEnough) {
  EXPECT_EQ(even_microbatch(97, 32, 1), 32) << "a prime number";
  EXPECT_EQ(even_microbatch(7 * 11, 32, 12), 32) << "a model that takes at least 12";
  EXPECT_EQ(even_microbatch(7, 32, 8), 32) << "too few for the model: refused later";
  EXPECT_EQ(even_microbatch(5, 1, 1), 1);
}

TEST(EvaluationPieces, CoverTheDataOrSomeOfIt) {
  const auto pieces = [](std::optional<std::int64_t> all, std::int64_t microbatch,
                         std::optional<std::int64_t> samples) {
    const EvaluationPieces found = evaluation_pieces(Scores(all), microbatch, samples);
    return std::vector{found.microbatch_samples, found.microbatches, found.samples_left};
  };
  EXPECT_EQ(pieces(7, 2, std::nullopt), (std::vector<std::int64_t>{2, 3, 1}));
  EXPECT_EQ(pieces(7, 2, 4), (std::vector<std::int64_t>{2, 2, 0}));
  EXPECT_EQ(pieces(std::nullopt, 2, 4), (std::vector<std::int64_t>{2, 2, 0}));
  EXPECT_THAT([&] { (void)pieces(std::nullopt, 2, std::nullopt); },
              ThrowsMessage<std::invalid_argument>("the data is endless; give the number of samples with --samples"));
  EXPECT_THAT([&] { (void)pieces(7, 2, 8); },
              ThrowsMessage<std::invalid_argument>("the data has 7 samples, fewer than 8"));
  EXPECT_THAT([&] { (void)pieces(7, 8, std::nullopt); },
              ThrowsMessage<std::invalid_argument>("7 samples do not fill one microbatch of 8"));
}

TEST(EvaluationJson, HasWhatIsKnown) {
  ModelEvaluation evaluation;
  evaluation.loss = 0.5;
  evaluation.samples = 8;
  evaluation.samples_left = 1;
  evaluation.predictions = 16;
  evaluation.correct = 4;
  evaluation.perplexity = 2;
  evaluation.time = Seconds(0.25);
  EXPECT_EQ(evaluation_json(evaluation, {"mlp", "text:a \"b\"", "saved/step-3", 3}),
            R"({
  "format": "stagecraft.evaluation",
  "version": 1,
  "model": "mlp",
  "data": "text:a \"b\"",
  "weights": "saved/step-3",
  "step": 3,
  "samples": 8,
  "samples_left": 1,
  "loss": 0.5,
  "accuracy": 0.25,
  "correct": 4,
  "predictions": 16,
  "perplexity": 2,
  "time_s": 0.25
}
)");
}

}  // namespace
}  // namespace stagecraft::run
