#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "costmodel/index.h"
#include "executor/intake/builtin/blocks.h"
#include "executor/intake/builtin/builtin_models.h"
#include "executor/intake/layer_sources.h"
#include "tests/executor/intake/builtin/one_layer.h"
#include "tests/executor/model/model_runner.h"
#include "tests/support/known_names.h"

namespace stagecraft::intake {
namespace {

using model::LayerSpec;
using model::Model;
using model::parameter_count;
using ::testing::ElementsAre;
using ::testing::ThrowsMessage;
using Options = std::map<std::string, std::string>;

// ---- the models

struct Published {
  std::string name;
  Options set;
  std::int64_t parameters;
};

class PublishedCount : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedCount, IsTheModelsCount) {
  EXPECT_EQ(parameter_count(build_model(GetParam().name, GetParam().set)), GetParam().parameters);
}

// Expected counts are from torchvision's table for the image models, the released checkpoints for GPT-2, and PyTorch's
// pipelining example for the transformer (10000 * 512 + 8 * 4204032 + 2 * 512 + 512 * 10000 + 10000).
INSTANTIATE_TEST_SUITE_P(
    Models, PublishedCount,
    ::testing::Values(Published{"alexnet", {{"classes", "1000"}}, 61100840}, Published{"vgg16", {}, 138357544},
                      Published{"resnet18", {}, 11689512}, Published{"resnet50", {}, 25557032},
                      Published{"transformer", {}, 43883280}, Published{"gpt", {}, 124439808},
                      Published{"gpt", {{"layers", "24"}, {"width", "1024"}, {"heads", "16"}}, 354823168},
                      Published{"gpt", {{"layers", "36"}, {"width", "1280"}, {"heads", "20"}}, 774030080},
                      Published{"gpt", {{"layers", "48"}, {"width", "1600"}, {"heads", "25"}}, 1557611200}));

const LayerSpec& find(const Model& model, const std::string& name) {
  return *std::ranges::find(model.layers, name, &LayerSpec::name);
}

TEST(Alexnet, HasTheTwentyTwoLayersOfTheExample) {
  const Model model = build_model("alexnet", {});
  std::vector<std::int64_t> counts;
  for (const LayerSpec& layer : model.layers) counts.push_back(parameter_count(layer));
  EXPECT_THAT(counts, ElementsAre(23296, 0, 0, 307392, 0, 0, 663936, 0, 884992, 0, 590080, 0, 0, 0, 0, 0, 37752832, 0,
                                  0, 16781312, 0, 40970, /*loss*/ 0));
}

TEST(Transformer, HasTheParametersOfADecoderLayer) {
  constexpr std::int64_t w = 512, inner = 2048;
  constexpr std::int64_t attention = 3 * w * w + 3 * w + w * w + w;
  constexpr std::int64_t feedforward = (w * inner + inner) + (inner * w + w);
  static_assert(2 * attention + feedforward + 3 * 2 * w == 4204032);
  EXPECT_EQ(parameter_count(find(build_model("transformer", {}), "layers.7")), 4204032);
}

TEST(Gpt, HasTheParametersOfABlock) {
  constexpr std::int64_t w = 768;
  constexpr std::int64_t attention = (w * 3 * w + 3 * w) + (w * w + w);
  constexpr std::int64_t feedforward = (w * 4 * w + 4 * w) + (4 * w * w + w);
  EXPECT_EQ(parameter_count(find(build_model("gpt", {}), "h.0")), attention + feedforward + 2 * 2 * w);
}

TEST(Gpt, CountsTheTiedEmbeddingOnce) {
  const Model model = build_model("gpt", {});
  EXPECT_EQ(find(model, "embedding").parameters[0].name, find(model, "lm_head").parameters[0].name);
  EXPECT_EQ(parameter_count(find(model, "lm_head")), 50257 * 768);
}

std::int64_t lstm_count(std::int64_t in, std::int64_t hidden) { return 4 * hidden * (in + hidden) + 8 * hidden; }

TEST(Gnmt, HasTheParametersOfEightLayersPerSide) {
  constexpr std::int64_t h = 1024, v = 32320;
  const std::int64_t encoder = 2 * lstm_count(h, h) + lstm_count(2 * h, h) + 6 * lstm_count(h, h);
  const std::int64_t decoder = lstm_count(h, h) + 7 * lstm_count(2 * h, h);
  const std::int64_t attention = 2 * h * h + h + 1 + h;  // W, U, v, g, b
  const std::int64_t rest = 2 * v * h + (h * v + v);     // embeddings, classifier
  EXPECT_EQ(parameter_count(build_model("gnmt", {})), encoder + decoder + attention + rest);
}

TEST(Gnmt, HasTheParameterBytesOfPipeDreamsProfile) {
  const Model model = build_model("gnmt", {{"layers", "4"}});
  const auto bytes = [&](const std::string& name) { return 4 * parameter_count(find(model, name)); };
  EXPECT_EQ(bytes("encoder.embedding"), 132382720);
  EXPECT_EQ(bytes("decoder.embedding"), 132382720);
  EXPECT_EQ(bytes("encoder.lstm1"), 67174400);
  EXPECT_EQ(bytes("encoder.lstm2"), 50364416);
  EXPECT_EQ(bytes("encoder.lstm4"), 33587200);
  EXPECT_EQ(bytes("decoder.lstm2"), 50364416);
  // PipeDream's attention is not normalised: it lacks the scalar and the bias.
  EXPECT_EQ(bytes("decoder.lstm1") + bytes("decoder.attention"), 41979904 + 4 * (1 + 1024));
  EXPECT_EQ(bytes("classifier"), 132512000);
}

TEST(Gnmt, GivesTheContextToEveryDecoderLayerAfterTheFirst) {
  const Model model = build_model("gnmt", {});
  int readers = 0;
  for (const LayerSpec& layer : model.layers)
    for (const model::ValueRef& ref : layer.inputs)
      if (ref.layer >= 0 && model.layers[to_index(ref.layer)].name == "decoder.attention") ++readers;
  EXPECT_EQ(readers, 7);
}

// ---- messages for bad input

TEST(BuildModel, ListsTheKnownModels) {
  EXPECT_THAT(
      [] { (void)build_model("lenet", {}); },
      ThrowsMessage<std::invalid_argument>("unknown model \"lenet\", known are " + known_names(builtin_models()) +
                                           ", and files that end in .pt2 or .pt"));
}

TEST(BuildModel, SaysToExportAModelInPython) {
  const auto says = [](const std::string& text) { return ThrowsMessage<std::invalid_argument>(text); };
  EXPECT_THAT(
      [] { (void)build_model("my/model.py:build", {}); },
      says("my/model.py:build: is Python; export the model first: stagecraft export-model my/model.py:build ... "
           "-o model.pt2"));
  EXPECT_THAT([] { (void)build_model("model.py", {}); },
              says("model.py: is Python; export the model first: stagecraft export-model model.py:FUNCTION ... "
                   "-o model.pt2"));
}

TEST(BuildModel, ListsTheKnownOptions) {
  EXPECT_THAT(
      [] { (void)build_model("mlp", {{"depth", "3"}}); },
      ThrowsMessage<std::invalid_argument>("mlp: unknown option \"depth\", known are inputs, width, layers, classes"));
}

TEST(BuildModel, RefusesWhatIsNotAnIntegerInRange) {
  for (const char* text : {"", "x", "3x", "2.5", "0", "-1", "1048577", "99999999999999999999"})
    EXPECT_THAT([&] { (void)build_model("mlp", {{"width", text}}); },
                ThrowsMessage<std::invalid_argument>("mlp: option width is \"" + std::string(text) +
                                                     "\", must be an integer from 1 to 1048576"));
}

TEST(BuildModel, RefusesHeadsThatDoNotDivideTheWidth) {
  EXPECT_THAT([] { (void)build_model("gpt", {{"heads", "7"}}); },
              ThrowsMessage<std::invalid_argument>("gpt: width 768 is not a multiple of heads 7"));
  EXPECT_THAT([] { (void)build_model("transformer", {{"heads", "7"}}); },
              ThrowsMessage<std::invalid_argument>("transformer: width 512 is not a multiple of heads 7"));
}

TEST(BuildModel, KeepsTheOptionsThatAreNotDefaults) {
  const Model model = build_model("mlp", {{"width", "1024"}, {"layers", "3"}});
  EXPECT_EQ(model.name, "mlp");
  EXPECT_EQ(model.options, (Options{{"layers", "3"}}));
}

// ---- arithmetic by hand

at::Tensor row(std::initializer_list<float> values) { return at::tensor(std::vector<float>(values)); }

TEST(Mlp, GivesLossAndGradientsComputedByHand) {
  const Model model = build_model("mlp", {{"inputs", "2"}, {"width", "2"}, {"layers", "2"}, {"classes", "2"}});
  Parameters parameters;
  const auto set = [&](const std::string& name, const at::Tensor& value) {
    parameters[name] = value.clone().set_requires_grad(true);
  };
  // x = (1, 2): hidden (1*1 - 1*2, 2*1 + 0*2 + 1) = (-1, 3), after ReLU (0, 3); logits (0, 3 - 3) = (0, 0): loss ln 2.
  set("fc1.weight", row({1, -1, 2, 0}).view({2, 2}));
  set("fc1.bias", row({0, 1}));
  set("fc2.weight", row({1, 0, 0, 1}).view({2, 2}));
  set("fc2.bias", row({0, -3}));
  const at::Tensor loss =
      run_model(model, parameters, {row({1, 2}).view({1, 2}), at::tensor(std::vector<std::int64_t>{0})});
  EXPECT_NEAR(loss.item<double>(), std::log(2.0), 1e-6);
  loss.backward();
  // d loss / d logits = softmax - one-hot = (-1/2, 1/2).
  EXPECT_TRUE(parameters["fc2.bias"].grad().allclose(row({-0.5, 0.5})));
  EXPECT_TRUE(parameters["fc2.weight"].grad().allclose(row({0, -1.5, 0, 1.5}).view({2, 2})));
  // Through W2 and ReLU only the second hidden value has a gradient: (0, 1/2), times x.
  EXPECT_TRUE(parameters["fc1.weight"].grad().allclose(row({0, 0, 0.5, 1}).view({2, 2})));
}

/// Two tokens of width 1, `samples` times: scores (0, 0) and (0, ln 3), so weights (1/2, 1/2) and (1/4, 3/4), over
/// values 1 and 5.
at::Tensor attend_two_tokens(std::int64_t samples, bool causal, std::int64_t dropout_percent) {
  const auto both = [&](float first, float second) {
    return row({first, second}).view({1, 2, 1}).expand({samples, 2, 1});
  };
  const Model model = built_model("attention", [&](GraphBuilder& graph) {
    const auto input = [&](const char* name) { return graph.input({name, "float32", {2, 1}}); };
    const ValueIndex query = input("query"), key = input("key"), value = input("value");
    const auto module = graph.module("attend", "Attention");
    return attend(graph, query, key, value, {.heads = 1, .causal = causal, .dropout_percent = dropout_percent});
  });
  const std::vector<at::Tensor> inputs{both(0, std::log(3.0F)), both(0, 1), both(1, 5)};
  return run_model(model, {}, inputs, {.seed = 3}).mean(0).flatten();
}

TEST(Attend, WeighsTwoTokensAsByHand) {
  EXPECT_TRUE(attend_two_tokens(1, false, 0).allclose(row({3, 4})));
  EXPECT_TRUE(attend_two_tokens(1, true, 0).allclose(row({1, 4})));
}

TEST(Attend, KeepsItsExpectationUnderDropout) {
  // Each weight is dropped or doubled: the variance is the sum of (w v)^2, at most 0.25^2 + 3.75^2 < 16; the mean over
  // 40000 samples has a standard deviation below 0.02.
  EXPECT_TRUE(attend_two_tokens(40000, false, 50).allclose(row({3, 4}), 0, 0.1));
  EXPECT_TRUE(attend_two_tokens(40000, true, 50).allclose(row({1, 4}), 0, 0.1));
}

at::Tensor call_layer(const LayerSpec& layer, std::vector<at::Tensor> inputs, std::vector<at::Tensor> parameters,
                      std::vector<at::Tensor> buffers = {}, std::uint64_t seed = 0, bool training = true) {
  return layer.forward(model::LayerCall{inputs, parameters, buffers, training, seed}).at(0);
}

TEST(Lstm, FollowsItsRecurrence) {
  const Model model = one_layer(
      {2, 1}, [](GraphBuilder& graph, ValueIndex x) { return lstm(graph, "lstm", x, {.in = 1, .hidden = 1}); });
  // Weights zero: gates input, forget, output at 1/2; candidate g = tanh(1). c1 = g/2, c2 = c1/2 + g/2 = 3g/4.
  const at::Tensor out = call_layer(model.layers[0], {row({7, 9}).view({1, 2, 1})},
                                    {at::zeros({4, 1}), at::zeros({4, 1}), row({0, 0, 1, 0}), at::zeros({4})});
  const double g = std::tanh(1.0);
  EXPECT_NEAR(out[0][0][0].item<double>(), 0.5 * std::tanh(g / 2), 1e-6);
  EXPECT_NEAR(out[0][1][0].item<double>(), 0.5 * std::tanh(3 * g / 4), 1e-6);
}

TEST(BahdanauAttention, WeighsTwoTokensAsByHand) {
  const Model model = build_model("gnmt", {{"hidden", "1"}, {"layers", "2"}, {"vocabulary", "3"}});
  // W = 0, U = 1, b = 0, memory 0 and 1: scores 0 and g tanh(1) = ln 3, so 1/4 and 3/4. |v| must not matter.
  const at::Tensor context = call_layer(
      find(model, "decoder.attention"), {row({5}).view({1, 1, 1}), row({0, 1}).view({1, 2, 1})},
      {at::zeros({1, 1}), at::ones({1, 1}), row({17}), row({std::log(3.0F) / std::tanh(1.0F)}), at::zeros({1})});
  EXPECT_NEAR(context.item<double>(), 0.75, 1e-6);
}

TEST(BatchNorm2d, MovesItsRunningStatisticsByATenth) {
  const Model model =
      one_layer({1, 1, 1}, [](GraphBuilder& graph, ValueIndex x) { return batch_norm2d(graph, "bn", x, 1); });
  const at::Tensor mean = at::zeros({1}), variance = at::ones({1}), x = row({1, 3}).view({2, 1, 1, 1});
  // Mean 2, unbiased variance 2.
  (void)call_layer(model.layers[0], {x}, {at::ones({1}), at::zeros({1})}, {mean, variance});
  EXPECT_TRUE(mean.allclose(row({0.2F})));
  EXPECT_TRUE(variance.allclose(row({1.1F})));
  (void)call_layer(model.layers[0], {x}, {at::ones({1}), at::zeros({1})}, {mean, variance}, 0, /*training=*/false);
  EXPECT_TRUE(mean.allclose(row({0.2F})));
}

TEST(Dropout, ZeroesItsShareAndScalesTheRest) {
  const Model model =
      one_layer({1}, [](GraphBuilder& graph, ValueIndex x) { return dropout(graph, "dropout", x, 25); });
  const LayerSpec& layer = model.layers[0];
  const at::Tensor x = at::ones({1000000, 1});
  const at::Tensor out = call_layer(layer, {x}, {}, {}, 5);
  EXPECT_EQ(out.eq(0).logical_or(out.eq(1 / 0.75F)).sum().item<std::int64_t>(), x.numel());
  EXPECT_NEAR(out.mean().item<double>(), 1, 5 * std::sqrt(0.25 / 0.75 / 1e6));
  EXPECT_TRUE(out.equal(call_layer(layer, {x}, {}, {}, 5)));
  EXPECT_FALSE(out.equal(call_layer(layer, {x}, {}, {}, 6)));
  EXPECT_TRUE(x.equal(call_layer(layer, {x}, {}, {}, 5, /*training=*/false)));
}

TEST(Dropout, DrawsOtherMasksInEachStream) {
  const at::Tensor x = at::ones({1000, 1});
  const auto drawn = [&](const std::string& stream) {
    const Model model = one_layer({1}, [&](GraphBuilder& graph, ValueIndex in) {
      const auto module = graph.module("dropout", "Dropout");
      return graph.dropout(in, 50, stream);
    });
    return call_layer(model.layers[0], {x}, {}, {}, 5);
  };
  EXPECT_TRUE(drawn("attention").equal(drawn("attention")));
  // Half of the values agree by chance; 100 more or fewer are more than six standard deviations.
  EXPECT_NEAR(drawn("").eq(drawn("attention")).sum().item<double>(), 500, 100);
}

/// Names of the operators of one forward in training.
std::set<std::string> operators_of(const std::string& name, Options set) {
  set.merge(Options{{"width", "16"}, {"layers", "1"}, {"heads", "2"}, {"vocabulary", "11"}, {"sequence", "4"}});
  const Model model = build_model(name, set);
  const Parameters parameters = make_parameters(model, 1);
  const at::Tensor tokens = at::zeros({1, 4}, at::kLong);
  static thread_local std::set<std::string>* seen = nullptr;
  std::set<std::string> out;
  seen = &out;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        seen->insert(function.name());
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  (void)run_model(model, parameters, {tokens, tokens}, {.seed = 1});
  at::removeCallback(handle);
  return out;
}

TEST(BuiltinModels, ComputeAttentionInOneKernelUnlessItsWeightsAreDropped) {
  const std::string fused = "aten::_scaled_dot_product_flash_attention_for_cpu";
  for (const char* name : {"gpt", "transformer"}) {
    const auto plain = operators_of(name, {});
    EXPECT_TRUE(plain.contains(fused)) << name;
    EXPECT_FALSE(plain.contains("aten::softmax")) << name << " keeps the weights of attention";
    EXPECT_TRUE(plain.contains("aten::bernoulli_")) << name << " has dropout elsewhere";
    const auto dropped = operators_of(name, {{"attention_dropout_percent", "10"}});
    EXPECT_FALSE(dropped.contains(fused)) << name;
    EXPECT_TRUE(dropped.contains("aten::softmax")) << name;
  }
}

/// Whether the loss at position 0 of a language model depends on the last token.
bool sees_the_future(const std::string& name, Options set) {
  set.merge(Options{{"width", "16"}, {"layers", "2"}, {"heads", "2"}, {"vocabulary", "11"}, {"sequence", "4"}});
  const Model model = build_model(name, set);
  const Parameters parameters = make_parameters(model, 1);
  const auto logits = [&](std::int64_t last) {
    const at::Tensor tokens = at::tensor(std::vector<std::int64_t>{1, 2, 3, last}).view({1, 4});
    return run_layers(model, parameters, {tokens, tokens}, {.training = false}).at(model.layers.size() - 2).at(0)[0][0];
  };
  return !logits(4).allclose(logits(5));
}

TEST(Gpt, SeesNoLaterTokens) { EXPECT_FALSE(sees_the_future("gpt", {})); }

TEST(Transformer, SeesLaterTokensUnlessCausal) {
  EXPECT_TRUE(sees_the_future("transformer", {}));
  EXPECT_FALSE(sees_the_future("transformer", {{"causal", "1"}}));
}

}  // namespace
}  // namespace stagecraft::intake
