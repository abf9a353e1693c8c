#include "executor/intake/layer_sources.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/data/data_source.h"
#include "executor/intake/pt2/pt2_graph.h"
#include "tests/executor/model/model_runner.h"
#include "tests/support/places.h"

namespace stagecraft::intake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

const std::string kNet = source_folder() + "/tests/golden/pt2/net.pt2";
const std::string kTied = source_folder() + "/tests/golden/pt2/tied.pt2";

std::vector<std::string> layer_names(const model::Model& model) {
  std::vector<std::string> out;
  for (const model::LayerSpec& layer : model.layers) out.push_back(layer.name);
  return out;
}

std::vector<std::string> parameter_names(const model::LayerSpec& layer) {
  std::vector<std::string> out;
  for (const model::ParameterSpec& parameter : layer.parameters) out.push_back(parameter.name);
  std::ranges::sort(out);
  return out;
}

const model::ParameterSpec& parameter(const model::Model& model, const std::string& name) {
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters) {
      if (parameter.name == name) return parameter;
    }
  }
  throw std::out_of_range(name);
}

TEST(ImportModel, HasTheNamesOfTheModules) {
  const model::Model model = build_model(kNet, {});
  EXPECT_EQ(model.name, kNet);
  EXPECT_THAT(model.options, IsEmpty());
  EXPECT_THAT(layer_names(model), ElementsAre("conv", "bn", "fc"));
  EXPECT_EQ(model.layers[1].kind, "BatchNorm2d");
  EXPECT_THAT(parameter_names(model.layers[0]), ElementsAre("conv.bias", "conv.weight"));
  EXPECT_THAT(parameter_names(model.layers[1]), ElementsAre("bn.bias", "bn.num_batches_tracked", "bn.running_mean",
                                                            "bn.running_var", "bn.weight", "scale"));
  EXPECT_EQ(model.least_samples, 1);
}

TEST(ImportModel, ReportsHowBuffersChange) {
  const model::Model model = build_model(kNet, {});
  EXPECT_EQ(parameter(model, "bn.running_mean").decay, 0.9);
  EXPECT_EQ(parameter(model, "bn.num_batches_tracked").decay, 1);
  EXPECT_EQ(parameter(model, "bn.num_batches_tracked").dtype, at::kLong);
  EXPECT_FALSE(parameter(model, "bn.running_var").written);
  // Not in the state dict: registered with persistent=False.
  EXPECT_TRUE(parameter(model, "scale").constant);
  EXPECT_FALSE(parameter(model, "bn.running_mean").constant);
}

TEST(ImportModel, GivesTiedParametersOneName) {
  const model::Model model = build_model(kTied, {});
  EXPECT_THAT(layer_names(model), ElementsAre("embedding", "lstm", "head"));
  EXPECT_THAT(parameter_names(model.layers[0]), ElementsAre("embedding.weight"));
  EXPECT_THAT(parameter_names(model.layers[2]), ElementsAre("embedding.weight"));
  // The embedding's 11 x 8 once; an LSTM has two weights of 4 x 8 x 8 and two biases of 4 x 8.
  EXPECT_EQ(model::parameter_count(model), 11 * 8 + 2 * 4 * 8 * 8 + 2 * 4 * 8);
}

TEST(Pt2Graph, TakesAnAxisTooManyFromAnLstmsStates) {
  const OperatorGraph graph = pt2_graph(read_pt2_archive(kTied));
  const auto lstm = std::ranges::find(graph.nodes, "torch.ops.aten.lstm.input", &GraphNode::target);
  ASSERT_NE(lstm, graph.nodes.end());
  ASSERT_EQ(lstm->gives.size(), 3U);
  // Output: samples, positions, width. Both states: layers, samples, width.
  const SizeExpression batch = graph.values[to_index(lstm->gives[0])].meta->sizes.at(0);
  EXPECT_FALSE(constant_value(batch));
  for (const std::size_t state : {1U, 2U}) {
    const TensorMeta& meta = *graph.values[to_index(lstm->gives[state])].meta;
    EXPECT_THAT(meta.sizes, ElementsAre(SizeExpression(1), batch, SizeExpression(8)));
    EXPECT_EQ(meta.strides.size(), 3U);
  }
}

TEST(ImportModel, ComputesWhatTheModelSays) {
  const model::Model model = build_model(kTied, {{"layers", "op"}});
  EXPECT_GT(model.layers.size(), 3U);
  const Parameters parameters = make_parameters(model, 1);
  const at::Tensor words = at::randint(11, {5, 4}, at::kLong), next = at::randint(11, {5, 4}, at::kLong);
  ASSERT_EQ(model.inputs.size(), 2U);
  EXPECT_EQ(model.inputs[0].classes, 11);  // the embedding's rows
  const at::Tensor found = run_model(model, parameters, {words, next});
  // The forward from embedding to loss, written by hand.
  const at::Tensor& table = parameters.at("embedding.weight");
  const at::Tensor zeros = at::zeros({1, 5, 8});
  const std::vector<at::Tensor> weights{parameters.at("lstm.weight_ih_l0"), parameters.at("lstm.weight_hh_l0"),
                                        parameters.at("lstm.bias_ih_l0"), parameters.at("lstm.bias_hh_l0")};
  const at::Tensor hidden = std::get<0>(at::lstm(at::embedding(table, words), {zeros, zeros}, weights,
                                                 /*has_biases=*/true, /*num_layers=*/1, /*dropout=*/0, /*train=*/true,
                                                 /*bidirectional=*/false, /*batch_first=*/true));
  const at::Tensor wanted = at::cross_entropy_loss(at::linear(hidden, table).reshape({-1, 11}), next.reshape({-1}));
  EXPECT_TRUE(found.equal(wanted)) << found << wanted;
}

TEST(ImportModel, MovesBuffersWhereItTrains) {
  const model::Model model = build_model(kNet, {});
  const Parameters parameters = make_parameters(model, 1);
  const std::vector<at::Tensor> inputs{at::randn({3, 1, 8, 8}), at::randint(3, {3}, at::kLong)};
  (void)run_model(model, parameters, inputs);
  EXPECT_EQ(parameters.at("bn.num_batches_tracked").item<std::int64_t>(), 1);
  // The initial value does not change.
  EXPECT_EQ(model::initial_value(parameter(model, "bn.num_batches_tracked"), 1).item<std::int64_t>(), 0);
}

TEST(ModelDigest, DistinguishesFilesByContent) {
  const std::filesystem::path copy =
      std::filesystem::temp_directory_path() / ("copy_" + std::to_string(::getpid()) + ".pt2");
  std::filesystem::copy_file(kNet, copy, std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(model_digest(copy.string()), model_digest(kNet));
  EXPECT_NE(model_digest(kTied), model_digest(kNet));
  std::filesystem::remove(copy);
}

TEST(ImportModel, RefusesSettingsThatDoNotFit) {
  const auto error = [](const std::string& path, const std::map<std::string, std::string>& settings) {
    return [path, settings] { (void)build_model(path, settings); };
  };
  EXPECT_THAT(error(kNet, {{"width", "4"}}),
              ThrowsMessage<std::invalid_argument>(
                  "unknown setting \"width\", known are layers, loss, loss_output, range.NAME, input.NAME, samples"));
  EXPECT_THAT(error(kNet, {{"layers", "blocks"}}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("expected auto, leaf, op, or depth=N")));
  EXPECT_THAT(error(kNet, {{"range.z", "0..4"}}),
              ThrowsMessage<std::invalid_argument>(kNet + ": unknown input \"z\", known are x, y"));
  EXPECT_THAT(error(kNet, {{"range.x", "4..0"}}),
              ThrowsMessage<std::invalid_argument>(
                  "setting range.x is \"4..0\", expected FROM..TO, such as 0..50257 for 0 to 50256"));
  EXPECT_THAT(error(kNet, {{"loss_output", "7"}}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("expected the index of a tensor among the model's 3")));
  EXPECT_THAT(error(kNet, {{"loss_output", "1"}}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("is not a loss (one floating-point number)")));
  EXPECT_THAT(error("absent.pt2", {}), ThrowsMessage<FormatError>(HasSubstr("absent.pt2")));
}

TEST(ImportModel, TakesARangeUpToRowsAndClasses) {
  // tests/golden/pt2/README.md: the embedding that reads x has 11 rows, the loss that reads y has 3 classes.
  const auto inputs = [](const std::string& path, const std::map<std::string, std::string>& settings) {
    return build_model(path, settings).inputs;
  };
  EXPECT_EQ(inputs(kTied, {{"range.x", "2..11"}})[0].least, 2);
  EXPECT_EQ(inputs(kTied, {{"range.x", "0..5"}})[0].classes, 5);
  EXPECT_THAT([&] { (void)inputs(kTied, {{"range.x", "0..12"}}); },
              ThrowsMessage<std::invalid_argument>(
                  kTied + ": node \"embedding\" (torch.ops.aten.embedding.default) in module \"embedding\": has 11 "
                          "rows; found range 0..12 of input \"x\", expected one within 0..11 (upper end excluded)"));
  EXPECT_THAT(
      [&] { (void)inputs(kTied, {{"range.x", "-1..11"}}); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("found range -1..11 of input \"x\", expected one within 0..11")));
  EXPECT_THAT([&] { (void)inputs(kNet, {{"range.y", "0..4"}}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr(
                  "has 3 classes; found range 0..4 of input \"y\", expected one within -100..3 (upper end excluded)")));
}

TEST(ImportModel, DrawsNoLabelThatTheLossIgnores) {
  // Cross entropy ignores the label -100.
  const model::Model model = build_model(kNet, {{"range.y", "-100..3"}});
  EXPECT_EQ(model.inputs[1].least, -100);
  EXPECT_EQ(model.inputs[1].least_drawn, 0);
  const at::Tensor labels =
      data::make_data_source("synthetic", model, 1)->batch(0, 0, 1, 400, std::vector<int>{1}).at(0);
  EXPECT_EQ(labels.min().item<std::int64_t>(), 0);
  EXPECT_EQ(labels.max().item<std::int64_t>(), 2);
}

TEST(ImportModel, AppendsALossByName) {
  // Output 1 is twice the class scores, made without gradients.
  const model::Model model = build_model(kNet, {{"loss", "mse"}, {"loss_output", "1"}});
  EXPECT_EQ(model.layers.back().name, "loss");
  EXPECT_EQ(model.inputs.back().name, "target");
  EXPECT_EQ(model.inputs.back().shape, (std::vector<std::int64_t>{3}));
}

}  // namespace
}  // namespace stagecraft::intake
