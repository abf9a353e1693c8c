#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "executor/data/data_source.h"
#include "executor/intake/builtin/builtin_models.h"
#include "tests/executor/model/model_runner.h"

namespace stagecraft::intake {
namespace {

using Options = std::map<std::string, std::string>;

std::vector<at::Tensor> make_batch(const model::Model& model, std::int64_t samples) {
  std::vector<int> all(model.inputs.size());
  std::iota(all.begin(), all.end(), 0);
  return data::make_data_source("synthetic", model, 7)->batch(0, 0, 1, samples, all);
}

struct Start {
  std::string name;
  Options set;
  std::int64_t samples;
  double loss;
  double tolerance;
};

class InitialLoss : public ::testing::TestWithParam<Start> {
 protected:
  // For such small work, spinning threads take ten times as long on a busy machine.
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_P(InitialLoss, IsThatOfAGuess) {
  const model::Model model = build_builtin_model(GetParam().name, GetParam().set);
  const at::Tensor loss =
      run_model(model, make_parameters(model, 3), make_batch(model, GetParam().samples), {.training = false});
  EXPECT_NEAR(loss.item<double>(), GetParam().loss, GetParam().tolerance);
}

// Logits with variance s^2 that are independent of the target give a loss of ln(classes) + s^2 / 2; the mean over n
// positions deviates by about s / sqrt(n).
// mlp: a linear layer divides the second moment by 3, ReLU by another 2; biases add little: s^2 < 0.1.
// gpt: the rows after the last norm have squared length 32, weights have standard deviation 0.02: s^2 = 32 * 0.0004 =
// 0.013.
// transformer: rows of squared length 32, weights uniform in 1/sqrt(32), variance 1/96: s^2 = 1/3.
// gnmt: |h| < 1 and weights below 1/sqrt(hidden) make s^2 < 1/3.
INSTANTIATE_TEST_SUITE_P(
    Models, InitialLoss,
    ::testing::Values(
        Start{"mlp", {{"width", "64"}}, 64, std::log(10), 0.15},
        Start{"gpt",
              {{"width", "32"}, {"heads", "2"}, {"layers", "2"}, {"vocabulary", "1000"}, {"sequence", "64"}},
              4,
              std::log(1000) + 0.0064,
              0.05},
        Start{"transformer",
              {{"width", "32"}, {"heads", "2"}, {"layers", "2"}, {"vocabulary", "1000"}, {"sequence", "64"}},
              16,
              std::log(1000) + 1.0 / 6,
              0.1},
        Start{"gnmt",
              {{"hidden", "32"}, {"layers", "2"}, {"vocabulary", "1000"}, {"target_sequence", "16"}},
              8,
              std::log(1000),
              0.25}),
    [](const auto& start) { return start.param.name; });

}  // namespace
}  // namespace stagecraft::intake
