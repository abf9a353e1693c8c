#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>

#include "costmodel/errors.h"
#include "executor/data/data_source.h"
#include "executor/intake/builtin/blocks.h"
#include "executor/intake/builtin/builtin_models.h"
#include "executor/intake/graph/calls/node_program.h"
#include "executor/intake/graph/program/program_nodes.h"
#include "tests/executor/model/model_runner.h"
#include "tests/support/models/small_builtin_models.h"

namespace stagecraft::intake {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<at::Tensor> make_batch(const model::Model& model, std::int64_t samples) {
  std::vector<int> all(model.inputs.size());
  std::iota(all.begin(), all.end(), 0);
  return data::make_data_source("synthetic", model, 7)->batch(0, 0, 1, samples, all);
}

/// Loss, gradients and buffers of two training forwards, and the loss in evaluation.
std::map<std::string, at::Tensor> results_of(const model::Model& model) {
  const Parameters parameters = make_parameters(model, 1);
  const std::vector<at::Tensor> inputs = make_batch(model, 3);
  std::map<std::string, at::Tensor> out;
  for (const std::uint64_t seed : {5U, 6U}) {
    const at::Tensor loss = run_model(model, parameters, inputs, {.seed = seed});
    loss.backward();
    out["loss " + std::to_string(seed)] = loss.detach();
  }
  for (const auto& [name, value] : parameters) out[name] = value.requires_grad() ? value.grad() : value;
  out["evaluation"] = run_model(model, parameters, inputs, {.training = false}).detach();
  return out;
}

/// A small model, with dropout wherever it has any.
ModelSettings small_settings(const std::string& name, bool drops) {
  ModelSettings out;
  for (const Small& small : small_models()) {
    if (small.name == name) out = small.set;
  }
  for (const BuiltinModel& model : builtin_models()) {
    for (const ModelOption& option : model.options) {
      if (model.name == name && option.name.ends_with("dropout_percent")) out[option.name] = drops ? "30" : "0";
    }
  }
  return out;
}

class EachBuiltinModel : public ::testing::TestWithParam<Small> {
 protected:
  // For such small work, spinning threads take ten times as long on a busy machine.
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

INSTANTIATE_TEST_SUITE_P(Models, EachBuiltinModel, ::testing::ValuesIn(small_models()),
                         [](const auto& small) { return small.param.name; });

TEST_P(EachBuiltinModel, ComputesTheSameBitsHoweverItIsCut) {
  const std::string& name = GetParam().name;
  for (const bool drops : {true, false}) {
    ModelSettings settings = small_settings(name, drops);
    const model::Model whole = build_builtin_model(name, settings);
    const auto wanted = results_of(whole);
    const std::string count = settings.contains("layers") ? settings.at("layers") + "," : "";
    for (const std::string cut : {"op", "leaf", "depth=1"}) {
      settings["layers"] = count + cut;
      const model::Model model = build_builtin_model(name, settings);
      if (cut == "op") { EXPECT_GT(model.layers.size(), whole.layers.size()); }
      const auto found = results_of(model);
      ASSERT_EQ(found.size(), wanted.size());
      for (const auto& [key, value] : wanted)
        EXPECT_TRUE(value.equal(found.at(key))) << "cut by " << cut << ": " << key;
    }
  }
}

TEST_P(EachBuiltinModel, HasAGraphThatNamesEachParameterOnceInBothModes) {
  const ModelSettings settings = small_settings(GetParam().name, true);
  const model::Model model = build_builtin_model(GetParam().name, settings);
  std::set<std::string> wanted;
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters) wanted.insert(parameter.name);
  }
  for (const auto mode : {model::ModelMode::Training, model::ModelMode::Evaluation}) {
    const OperatorGraph graph = builtin_graph(GetParam().name, settings, mode);
    std::multiset<std::string> found;
    for (const GraphTensor& tensor : graph.tensors) found.insert(tensor.name);
    EXPECT_EQ(found, (std::multiset<std::string>(wanted.begin(), wanted.end())));
  }
}

TEST_P(EachBuiltinModel, HoldsItsOperatorsAndArgumentsAsData) {
  const OperatorGraph graph = builtin_graph(GetParam().name, small_settings(GetParam().name, true));
  ASSERT_EQ(graph.program->nodes.size(), graph.nodes.size());
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const ProgramNode& node = graph.program->nodes[n];
    EXPECT_EQ(node.target, graph.nodes[n].target);
    EXPECT_FALSE(node.arguments.empty()) << node.target;
    for (const ProgramArgument& argument : node.arguments) EXPECT_FALSE(argument.name.empty()) << node.target;
  }
}

TEST(BuiltinGraph, RunsChangedArguments) {
  const OperatorGraph graph = built_graph(
      "model",
      [](GraphBuilder& builder) {
        const ValueIndex x = builder.input({"x", "float32", {6}});
        const ValueIndex heads = builder.call("aten::unflatten.int", {x, -1, SizeList{3, -1}});
        return builder.call("aten::sum.dim_IntList", {heads, SizeList{1}});
      },
      model::ModelMode::Training);
  const auto run = [](const OperatorGraph& of) {
    const NodeProgram program(of, {0, 1}, of.outputs);
    const at::Tensor x = at::tensor({1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}).view({1, 6});
    return program.run({&x, 1}, {}, {}).at(0);
  };
  // Over three heads of two values, then over two heads of three.
  EXPECT_TRUE(run(graph).equal(at::tensor({9.0F, 12.0F}).view({1, 2})));
  ProgramGraph changed = *graph.program;
  ProgramArgument& sizes = changed.nodes[0].arguments[2];
  EXPECT_EQ(sizes.name, "sizes");
  EXPECT_EQ(std::get<SizeList>(sizes.value), (SizeList{3, -1}));
  sizes.value = SizeList{2, -1};
  OperatorGraph other = graph;
  other.values.clear();
  other.nodes.clear();
  add_program(other, std::make_shared<const ProgramGraph>(std::move(changed)));
  other.values[0].origin = GraphValue::Origin::Input;
  other.values[0].source = 0;
  EXPECT_TRUE(run(other).equal(at::tensor({5.0F, 7.0F, 9.0F}).view({1, 3})));
}

TEST(GraphBuilder, RefusesWhatIsNotACallOfAnOperator) {
  const auto add = [](const std::string& op, std::vector<ArgumentValue> more) {
    GraphBuilder builder("net", model::ModelMode::Training);
    std::vector<ArgumentValue> arguments{builder.input({"x", "float32", {4}})};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto module = builder.module("layer", "Test");
    (void)builder.call(op, arguments);
  };
  EXPECT_NO_THROW(add("aten::relu", {}));
  EXPECT_THAT([&] { add("aten::relux", {}); },
              ThrowsMessage<FormatError>("net: node \"relux\" (torch.ops.aten.relux.default) in module \"layer\": "
                                         "LibTorch 2.11 has no operator torch.ops.aten.relux.default"));
  EXPECT_THAT([&] { add("aten::relu", {1}); }, ThrowsMessage<FormatError>(HasSubstr("is one more than the operator")));
  EXPECT_THAT([&] { add("aten::linear", {}); },
              ThrowsMessage<FormatError>(HasSubstr("in module \"layer\": argument \"weight\" is missing")));
  EXPECT_THAT([&] { add("aten::flatten.using_ints", {"one"}); },
              ThrowsMessage<FormatError>(HasSubstr("argument \"start_dim\": found \"one\", expected int")));
  EXPECT_THAT([&] { add("aten::transpose.int", {0, 7}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("Dimension out of range")));
}

TEST(BuildModel, TakesHowToCutTheModelInSettingLayers) {
  const auto layers = [](const std::string& name, const std::string& text) {
    ModelSettings settings = small_settings(name, false);
    settings["layers"] = text;
    return build_builtin_model(name, settings);
  };
  const auto has = [](const model::Model& model, const std::string& name) {
    return std::ranges::find(model.layers, name, &model::LayerSpec::name) != model.layers.end();
  };
  EXPECT_EQ(layers("gpt", "2").layers.size(), 6U);
  EXPECT_TRUE(has(layers("gpt", "2,leaf"), "h.1.attn.c_attn"));
  EXPECT_FALSE(has(layers("gpt", "2,leaf"), "h.2.attn.c_attn"));
  EXPECT_TRUE(has(layers("gpt", "leaf"), "h.11.attn.c_attn"));
  EXPECT_TRUE(has(layers("gpt", "2,op"), "h.0.mlp:gelu"));
  EXPECT_EQ(layers("gpt", "2,depth=1").layers.size(), 6U);
  EXPECT_TRUE(has(layers("resnet18", "op"), "layer1.0.add:add"));
  EXPECT_EQ(layers("gpt", "2,op").options.at("layers"), "2,op");
  EXPECT_EQ(layers("gpt", "12,op").options.at("layers"), "op");
  EXPECT_FALSE(layers("gpt", "12,auto").options.contains("layers"));
  EXPECT_EQ(layers("resnet18", "leaf").options.at("layers"), "leaf");
  EXPECT_THAT([&] { (void)layers("gpt", "2,leaves"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("layers \"leaves\": expected auto, leaf, op")));
  EXPECT_THAT([&] { (void)layers("resnet18", "4"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("layers \"4\": expected auto, leaf, op")));
}

TEST(BuiltinModels, ComputeDroppedAttentionWeightsInOneLayer) {
  ModelSettings settings = small_settings("gpt", true);
  settings["layers"] = "2,op";
  const model::Model model = build_builtin_model("gpt", settings);
  ASSERT_TRUE(model.merged.contains("h.0.attn:softmax"));
  EXPECT_THAT(model.merged.at("h.0.attn:softmax"),
              HasSubstr("is part of layer \"h.0.attn:mul\": in evaluation, one operator computes them"));
}

}  // namespace
}  // namespace stagecraft::intake
