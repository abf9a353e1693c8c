#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <ostream>
#include <set>

#include "costmodel/index.h"
#include "costmodel/project/steps.h"
#include "executor/data/data_source.h"
#include "executor/intake/builtin/builtin_models.h"
#include "executor/intake/layer_sources.h"
#include "tests/executor/model/model_runner.h"
#include "tests/support/models/small_builtin_models.h"
#include "tests/support/places.h"

namespace stagecraft::intake {
namespace {

/// A model from one of the sources.
struct Sample {
  std::string name;
  std::string source;  ///< the only source that has it
  std::string model;
  ModelSettings settings = {};
  bool branches = false;  ///< branches on data, which determines the parameters that affect the loss
};
void PrintTo(const Sample& sample, std::ostream* out) { *out << sample.name; }

/// Every built-in model, small, and files; other tests compare files with Python.
std::vector<Sample> samples() {
  std::vector<Sample> out;
  for (const Small& small : small_models()) out.push_back({small.name, "built-in", small.name, small.set});
  const std::string golden = source_folder() + "/tests/golden/";
  out.push_back({"net_pt2", "pt2", golden + "pt2/net.pt2"});
  out.push_back({"tied_pt2", "pt2", golden + "pt2/tied.pt2"});
  out.push_back({"cnn_traced",
                 "torchscript",
                 golden + "torchscript/cnn_traced.pt",
                 {{"input.x", "float32[3,8,8]"}, {"input.target", "int64[]"}}});
  out.push_back({"control_flow_scripted",
                 "torchscript",
                 golden + "torchscript/control_flow_scripted.pt",
                 {{"input.x", "float32[8]"}, {"input.target", "int64[]"}},
                 /*branches=*/true});
  return out;
}

model::Model model_of(const Sample& sample, model::ModelMode mode = model::ModelMode::Training) {
  return build_model(sample.model, sample.settings, mode);
}

TEST(SmallModels, AreAllBuiltInModels) {
  std::vector<std::string> names;
  for (const Small& small : small_models()) names.push_back(small.name);
  EXPECT_EQ(names, builtin_model_names());
}

TEST(LayerSources, HaveASampleEachInThisSuite) {
  for (const LayerSource& source : layer_sources()) {
    int has = 0;
    for (const Sample& sample : samples()) {
      // Only sources of files are asked about files.
      if (source.ending.empty() == is_model_file(sample.model)) continue;
      EXPECT_EQ(source.has(sample.model), sample.source == source.name) << sample.name;
      has += sample.source == source.name;
    }
    EXPECT_GT(has, 0) << source.name;
  }
}

TEST(LayerSources, OfFilesTellFilesApart) {
  for (const LayerSource& source : layer_sources()) EXPECT_EQ(source.digest == nullptr, source.ending.empty());
  std::set<std::uint64_t> digests;
  std::size_t files = 0;
  for (const Sample& sample : samples()) {
    if (!is_model_file(sample.model)) continue;
    ++files;
    digests.insert(model_digest(sample.model));
  }
  EXPECT_EQ(digests.size(), files);
}

// Tools without LibTorch cannot ask the table which models are files.
TEST(LayerSources, AreFilesForProjectsAsWell) {
  for (const Sample& sample : samples())
    EXPECT_EQ(project::is_model_file(sample.model), is_model_file(sample.model)) << sample.model;
  for (const LayerSource& source : layer_sources()) {
    if (source.ending.empty()) continue;
    EXPECT_TRUE(project::is_model_file("net" + source.ending)) << source.name;
  }
}

std::vector<at::Tensor> make_batch(const model::Model& model, std::int64_t samples) {
  std::vector<int> all(model.inputs.size());
  std::iota(all.begin(), all.end(), 0);
  return data::make_data_source("synthetic", model, 7)->batch(0, 0, 1, samples, all);
}

class LayerSourceConformance : public ::testing::TestWithParam<Sample> {
 protected:
  // For such small work, spinning threads take ten times as long on a busy machine.
  static void SetUpTestSuite() { at::set_num_threads(1); }
  model::Model model_ = model_of(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Models, LayerSourceConformance, ::testing::ValuesIn(samples()),
                         [](const auto& sample) { return sample.param.name; });

TEST_P(LayerSourceConformance, NamesLayersOnceAndReadsEarlierOnesOnly) {
  std::set<std::string> layers;
  std::set<std::pair<int, int>> read;
  std::set<int> inputs;
  for (std::size_t i = 0; i < model_.layers.size(); ++i) {
    const model::LayerSpec& layer = model_.layers[i];
    EXPECT_TRUE(layers.insert(layer.name).second) << layer.name;
    EXPECT_FALSE(layer.kind.empty()) << layer.name;
    for (const model::ValueRef& ref : layer.inputs) {
      if (ref.layer < 0) {
        ASSERT_TRUE(ref.input >= 0 && ref.input < to_int(model_.inputs.size())) << layer.name;
        inputs.insert(ref.input);
      } else {
        ASSERT_LT(ref.layer, to_int(i)) << layer.name;
        ASSERT_LT(ref.output, model_.layers[to_index(ref.layer)].outputs) << layer.name;
        read.insert({ref.layer, ref.output});
      }
    }
  }
  EXPECT_EQ(inputs.size(), model_.inputs.size()) << "an input that no layer reads";
  std::size_t outputs = 0;
  for (const model::LayerSpec& layer : model_.layers) outputs += to_index(layer.outputs);
  EXPECT_EQ(read.size(), outputs - 1) << "every output but the loss is read";
  if (GetParam().source != "built-in") return;
  EXPECT_EQ(model_.layers.back().name, "loss");
  EXPECT_EQ(model_.layers.back().kind, "CrossEntropyLoss");
  EXPECT_EQ(model_.inputs.back().name, "target");
}

TEST_P(LayerSourceConformance, GivesAParameterOneMeaning) {
  std::map<std::string, const model::ParameterSpec*> seen;
  for (const model::LayerSpec& layer : model_.layers)
    for (const model::ParameterSpec& spec : layer.parameters) {
      const auto [at, fresh] = seen.emplace(spec.name, &spec);
      if (fresh) continue;
      EXPECT_EQ(at->second->shape, spec.shape) << spec.name;
      EXPECT_EQ(at->second->init, spec.init) << spec.name;
      EXPECT_EQ(at->second->scale, spec.scale) << spec.name;
      EXPECT_EQ(at->second->trainable, spec.trainable) << spec.name;
    }
}

TEST_P(LayerSourceConformance, HoldsTheBytesThatItsParametersSay) {
  std::int64_t trained = 0;
  for (const auto& [name, value] : make_parameters(model_, 1)) {
    for (const model::LayerSpec& layer : model_.layers)
      for (const model::ParameterSpec& spec : layer.parameters) {
        if (spec.name != name) continue;
        std::int64_t values = 1;
        for (const std::int64_t extent : spec.shape) values *= extent;
        const auto bytes = values * static_cast<std::int64_t>(c10::elementSize(spec.dtype));
        EXPECT_EQ(static_cast<std::int64_t>(value.nbytes()), bytes) << name;
        if (spec.trainable) { EXPECT_EQ(spec.dtype, at::kFloat) << name; }
      }
    if (value.requires_grad()) trained += static_cast<std::int64_t>(value.nbytes());
  }
  EXPECT_EQ(4 * model::parameter_count(model_), trained);
}

TEST_P(LayerSourceConformance, BuildsEqualModelsTwice) {
  const model::Model again = model_of(GetParam());
  ASSERT_EQ(again.layers.size(), model_.layers.size());
  for (std::size_t i = 0; i < model_.layers.size(); ++i) EXPECT_EQ(again.layers[i].name, model_.layers[i].name);
  const Parameters first = make_parameters(model_, 1), second = make_parameters(again, 1);
  ASSERT_EQ(first.size(), second.size());
  for (const auto& [name, value] : first) {
    ASSERT_TRUE(second.contains(name)) << name;
    EXPECT_TRUE(value.equal(second.at(name))) << name;
  }
  const std::vector<at::Tensor> inputs = make_batch(model_, 2);
  EXPECT_TRUE(run_model(model_, first, inputs).equal(run_model(again, second, inputs)));
}

TEST_P(LayerSourceConformance, ChainsShapesThatGrowWithTheSamplesAlone) {
  const auto shapes = [&](std::int64_t samples) {
    std::vector<std::vector<std::vector<std::int64_t>>> out;
    for (const auto& outputs : run_layers(model_, make_parameters(model_, 1), make_batch(model_, samples))) {
      out.emplace_back();
      for (const at::Tensor& output : outputs) out.back().push_back(output.sizes().vec());
    }
    return out;
  };
  const auto two = shapes(2);
  auto four = shapes(4);
  for (std::size_t i = 0; i < four.size(); ++i) {
    for (std::vector<std::int64_t>& shape : four[i]) {
      if (shape.empty()) continue;
      EXPECT_EQ(shape.front(), 4) << model_.layers[i].name;
      shape.front() = 2;
    }
    EXPECT_EQ(four[i], two[i]) << model_.layers[i].name;
  }
}

TEST_P(LayerSourceConformance, BuildsTheSameFromOneSeedAndAnotherFromAnother) {
  std::set<double> sums;
  std::size_t random = 0;
  for (const auto& [name, value] : make_parameters(model_, 1)) {
    model::ParameterSpec spec;
    for (const model::LayerSpec& layer : model_.layers)
      for (const model::ParameterSpec& parameter : layer.parameters)
        if (parameter.name == name) spec = parameter;
    EXPECT_EQ(value.sizes().vec(), spec.shape) << name;
    EXPECT_TRUE(value.equal(model::initial_value(spec, 1))) << name;
    EXPECT_NE(value.data_ptr(), model::initial_value(spec, 1).data_ptr()) << name << " is not the caller's own";
    if (spec.load) continue;
    if (spec.init == model::Init::Zeros || spec.init == model::Init::Ones) continue;
    EXPECT_FALSE(value.equal(model::initial_value(spec, 2))) << name;
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
    EXPECT_EQ(to_int(outputs[i].size()), model_.layers[i].outputs) << model_.layers[i].name;
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
  // Backward also fails if a layer overwrote a value that another layer saved.
  loss.backward();
  for (const auto& [name, value] : parameters) {
    if (!value.requires_grad()) continue;
    if (GetParam().branches && !value.grad().defined()) continue;
    ASSERT_TRUE(value.grad().defined()) << name;
    EXPECT_TRUE(value.grad().isfinite().all().item<bool>()) << name;
  }
}

TEST_P(LayerSourceConformance, RepeatsItselfBitForBitFromOneRandomSeed) {
  const std::vector<at::Tensor> inputs = make_batch(model_, 2);
  const auto gradients = [&](std::uint64_t seed) {
    const Parameters parameters = make_parameters(model_, 1);
    const at::Tensor loss = run_model(model_, parameters, inputs, {.seed = seed});
    loss.backward();
    std::map<std::string, at::Tensor> out{{"loss", loss}};
    for (const auto& [name, value] : parameters) out[name] = value.grad().defined() ? value.grad() : value;
    return out;
  };
  const auto first = gradients(1), again = gradients(1), other = gradients(2);
  for (const auto& [name, value] : first) EXPECT_TRUE(value.equal(again.at(name))) << name;
  bool drops = false;
  for (const BuiltinModel& model : builtin_models())
    if (model.name == GetParam().name)
      for (const ModelOption& option : model.options) drops |= option.name == "dropout_percent";
  EXPECT_EQ(first.at("loss").equal(other.at("loss")), !drops);
}

TEST_P(LayerSourceConformance, GivesAMicrobatchTheMeanOfItsSamplesWithoutRandomness) {
  // Only batch norm mixes samples, and not in evaluation.
  const model::Model model = model_of(GetParam(), model::ModelMode::Evaluation);
  const Parameters parameters = make_parameters(model, 1);
  const std::vector<at::Tensor> inputs = make_batch(model, 2);
  const auto loss = [&](std::int64_t from, std::int64_t count) {
    std::vector<at::Tensor> part;
    for (const at::Tensor& input : inputs) part.push_back(input.narrow(0, from, count));
    return run_model(model, parameters, part, {.training = false}).item<double>();
  };
  EXPECT_NEAR(loss(0, 2), (loss(0, 1) + loss(1, 1)) / 2, 1e-4 * std::abs(loss(0, 2)));
}

}  // namespace
}  // namespace stagecraft::intake
