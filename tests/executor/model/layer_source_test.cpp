#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "executor/data/data_source.h"
#include "tests/executor/model/model_runner.h"

namespace stagecraft {
namespace {

using Options = std::map<std::string, std::string>;

/// Every entry of the table of layer sources at sizes that take a second.
const std::map<std::string, Options> kSmall{
    {"mlp", {{"width", "16"}}},
    {"convnet", {{"channels", "4"}, {"width", "16"}}},
    {"alexnet", {{"image", "63"}, {"width", "64"}}},
    {"vgg16", {{"image", "32"}, {"channels", "8"}, {"width", "64"}, {"classes", "10"}}},
    {"resnet18", {{"image", "64"}, {"channels", "8"}, {"classes", "10"}}},
    {"resnet50", {{"image", "64"}, {"channels", "8"}, {"classes", "10"}}},
    {"gnmt", {{"hidden", "16"}, {"vocabulary", "50"}, {"source_sequence", "5"}, {"target_sequence", "4"}}},
    {"transformer", {{"width", "16"}, {"heads", "2"}, {"feedforward", "32"}, {"vocabulary", "50"}, {"sequence", "6"}}},
    {"gpt", {{"width", "16"}, {"heads", "2"}, {"layers", "3"}, {"vocabulary", "50"}, {"sequence", "6"}}},
};

/// Models from files, which other tests compare with Python.
const std::map<std::string, std::string> kFiles{
    {"net_pt2", STAGECRAFT_SOURCE_DIR "/tests/golden/pt2/net.pt2"},
    {"tied_pt2", STAGECRAFT_SOURCE_DIR "/tests/golden/pt2/tied.pt2"},
};

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const LayerSource& source : layer_sources()) out.push_back(source.name);
  for (const auto& [name, path] : kFiles) out.push_back(name);
  return out;
}

Model model_of(const std::string& name) {
  return kFiles.contains(name) ? build_model(kFiles.at(name), {}) : build_model(name, kSmall.at(name));
}

std::vector<at::Tensor> make_batch(const Model& model, std::int64_t samples) {
  std::vector<int> all(model.inputs.size());
  std::iota(all.begin(), all.end(), 0);
  return make_data_source("synthetic", model, 7)->batch(0, 0, 1, samples, all);
}

class LayerSourceConformance : public testing::TestWithParam<std::string> {
 protected:
  // Threads that spin for work this small take ten times as long on a busy machine.
  static void SetUpTestSuite() { at::set_num_threads(1); }
  Model model_ = model_of(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Models, LayerSourceConformance, testing::ValuesIn(names()),
                         [](const auto& name) { return name.param; });

TEST_P(LayerSourceConformance, NamesLayersOnceAndReadsEarlierOnesOnly) {
  std::set<std::string> layers;
  std::set<std::pair<int, int>> read;
  std::set<int> inputs;
  for (std::size_t i = 0; i < model_.layers.size(); ++i) {
    const LayerSpec& layer = model_.layers[i];
    EXPECT_TRUE(layers.insert(layer.name).second) << layer.name;
    EXPECT_FALSE(layer.kind.empty()) << layer.name;
    for (const ValueRef& ref : layer.inputs) {
      if (ref.layer < 0) {
        ASSERT_TRUE(ref.input >= 0 && ref.input < static_cast<int>(model_.inputs.size())) << layer.name;
        inputs.insert(ref.input);
      } else {
        ASSERT_LT(ref.layer, static_cast<int>(i)) << layer.name;
        ASSERT_LT(ref.output, model_.layers[static_cast<std::size_t>(ref.layer)].outputs) << layer.name;
        read.insert({ref.layer, ref.output});
      }
    }
  }
  EXPECT_EQ(inputs.size(), model_.inputs.size()) << "an input that no layer reads";
  std::size_t outputs = 0;
  for (const LayerSpec& layer : model_.layers) outputs += static_cast<std::size_t>(layer.outputs);
  EXPECT_EQ(read.size(), outputs - 1) << "every output but the loss is read";
  if (kFiles.contains(GetParam())) return;
  EXPECT_EQ(model_.layers.back().name, "loss");
  EXPECT_EQ(model_.layers.back().kind, "CrossEntropyLoss");
  EXPECT_EQ(model_.inputs.back().name, "target");
}

TEST_P(LayerSourceConformance, GivesAParameterOneMeaning) {
  std::map<std::string, const ParameterSpec*> seen;
  for (const LayerSpec& layer : model_.layers)
    for (const ParameterSpec& spec : layer.parameters) {
      const auto [at, fresh] = seen.emplace(spec.name, &spec);
      if (fresh) continue;
      EXPECT_EQ(at->second->shape, spec.shape) << spec.name;
      EXPECT_EQ(at->second->init, spec.init) << spec.name;
      EXPECT_EQ(at->second->scale, spec.scale) << spec.name;
      EXPECT_EQ(at->second->trainable, spec.trainable) << spec.name;
    }
}

TEST_P(LayerSourceConformance, BuildsTheSameFromOneSeedAndAnotherFromAnother) {
  std::set<double> sums;
  std::size_t random = 0;
  for (const auto& [name, value] : make_parameters(model_, 1)) {
    ParameterSpec spec;
    for (const LayerSpec& layer : model_.layers)
      for (const ParameterSpec& each : layer.parameters)
        if (each.name == name) spec = each;
    EXPECT_EQ(value.sizes().vec(), spec.shape) << name;
    EXPECT_TRUE(value.equal(initial_value(spec, 1))) << name;
    EXPECT_NE(value.data_ptr(), initial_value(spec, 1).data_ptr()) << name << " is not the caller's own";
    if (spec.load) continue;
    if (spec.init == Init::Zeros || spec.init == Init::Ones) continue;
    EXPECT_FALSE(value.equal(initial_value(spec, 2))) << name;
    sums.insert(value.sum().item<double>());
    ++random;
  }
  EXPECT_EQ(sums.size(), random) << "two parameters begin alike";
}

TEST_P(LayerSourceConformance, TrainsEveryParameterAndChangesNoInput) {
  const Parameters parameters = make_parameters(model_, 1);
  const std::vector<at::Tensor> inputs = make_batch(model_, 2);
  const std::vector<std::vector<at::Tensor>> outputs = run_layers(model_, parameters, inputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(static_cast<int>(outputs[i].size()), model_.layers[i].outputs) << model_.layers[i].name;
    for (const at::Tensor& output : outputs[i]) {
      EXPECT_EQ(output.scalar_type(), at::kFloat) << model_.layers[i].name;
      if (&output != &outputs.back()[0]) {
        EXPECT_EQ(output.size(0), 2) << model_.layers[i].name << " lost the samples' axis";
      }
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i)
    EXPECT_TRUE(inputs[i].equal(make_batch(model_, 2)[i])) << model_.inputs[i].name;
  const at::Tensor& loss = outputs.back().at(0);
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_TRUE(std::isfinite(loss.item<double>()));
  // Backward also fails if a layer wrote into a value that another one saved.
  loss.backward();
  for (const auto& [name, value] : parameters) {
    if (!value.requires_grad()) continue;
    ASSERT_TRUE(value.grad().defined()) << name;
    EXPECT_TRUE(value.grad().isfinite().all().item<bool>()) << name;
  }
}

TEST_P(LayerSourceConformance, RepeatsItselfBitForBitFromOneRandomSeed) {
  const std::vector<at::Tensor> inputs = make_batch(model_, 2);
  const auto gradients = [&](std::uint64_t random_seed) {
    const Parameters parameters = make_parameters(model_, 1);
    const at::Tensor loss = run_model(model_, parameters, inputs, {.random_seed = random_seed});
    loss.backward();
    std::map<std::string, at::Tensor> out{{"loss", loss}};
    for (const auto& [name, value] : parameters) out[name] = value.requires_grad() ? value.grad() : value;
    return out;
  };
  const auto first = gradients(1), again = gradients(1), other = gradients(2);
  for (const auto& [name, value] : first) EXPECT_TRUE(value.equal(again.at(name))) << name;
  bool drops = false;
  for (const LayerSource& source : layer_sources())
    if (source.name == GetParam())
      for (const ModelOption& option : source.options) drops |= option.name == "dropout_percent";
  EXPECT_EQ(first.at("loss").equal(other.at("loss")), !drops);
}

TEST_P(LayerSourceConformance, GivesAMicrobatchTheMeanOfItsSamplesWithoutRandomness) {
  if (GetParam() == "net_pt2") GTEST_SKIP() << "the archive trains, and its batch norm ties samples together";
  // Only batch norm ties samples together, and it does not when it does not train.
  const Parameters parameters = make_parameters(model_, 1);
  const std::vector<at::Tensor> inputs = make_batch(model_, 2);
  const auto loss = [&](std::int64_t from, std::int64_t count) {
    std::vector<at::Tensor> part;
    for (const at::Tensor& input : inputs) part.push_back(input.narrow(0, from, count));
    return run_model(model_, parameters, part, {.training = false}).item<double>();
  };
  EXPECT_NEAR(loss(0, 2), (loss(0, 1) + loss(1, 1)) / 2, 1e-4 * std::abs(loss(0, 2)));
}

// ---- the loss before training

struct Start {
  std::string name;
  Options set;
  std::int64_t samples;
  double loss;
  double tolerance;
};

class InitialLoss : public testing::TestWithParam<Start> {};

TEST_P(InitialLoss, IsThatOfAGuess) {
  const Model model = build_model(GetParam().name, GetParam().set);
  const at::Tensor loss =
      run_model(model, make_parameters(model, 3), make_batch(model, GetParam().samples), {.training = false});
  EXPECT_NEAR(loss.item<double>(), GetParam().loss, GetParam().tolerance);
}

// Logits with variance s^2 that know nothing of the target give ln(classes) + s^2 / 2, and a mean over n positions
// strays by about s / sqrt(n).
// mlp: a linear layer divides the second moment by 3, ReLU by 2 more; biases add little: s^2 < 0.1.
// gpt: the last norm gives rows of squared length 32, weights have deviation 0.02: s^2 = 32 * 0.0004 = 0.013.
// transformer: rows of squared length 32, weights uniform in 1/sqrt(32), variance 1/96: s^2 = 1/3.
// gnmt: |h| < 1 and weights below 1/sqrt(hidden) make s^2 < 1/3.
INSTANTIATE_TEST_SUITE_P(
    Models, InitialLoss,
    testing::Values(
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
}  // namespace stagecraft
