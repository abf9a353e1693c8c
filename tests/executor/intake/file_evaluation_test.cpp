#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/flatten.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/intake/graph/calls/evaluation.h"
#include "executor/intake/graph/memory_sets.h"
#include "executor/intake/graph/program/evaluating.h"
#include "executor/intake/layer_sources.h"
#include "executor/intake/torchscript/torchscript_graph.h"
#include "executor/stage/stage_program.h"
#include "tests/executor/model/model_runner.h"
#include "tests/support/graph_sketch.h"
#include "tests/support/places.h"

// Models from files, built for evaluation.

namespace stagecraft::intake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Origin = GraphValue::Origin;

const std::string kNet = source_folder() + "/tests/golden/pt2/net.pt2";
const std::string kTraced = source_folder() + "/tests/golden/torchscript/cnn_traced.pt";
const std::string kScripted = source_folder() + "/tests/golden/torchscript/control_flow_scripted.pt";
const std::map<std::string, std::string> kImage{
    {"input.x", "float32[3,8,8]"}, {"input.target", "int64[]"}, {"range.target", "0..4"}};
const std::map<std::string, std::string> kVector{{"input.x", "float32[8]"}, {"input.target", "int64[]"}};

std::vector<std::string> layer_names(const model::Model& model) {
  std::vector<std::string> out;
  for (const model::LayerSpec& layer : model.layers) out.push_back(layer.name);
  return out;
}

/// Parameters and buffers; no buffer has its initial value.
Parameters trained_parameters(const model::Model& model) {
  Parameters out = make_parameters(model, 1);
  for (auto& [name, value] : out) {
    if (name.ends_with("running_mean")) value = at::randn(value.sizes());
    if (name.ends_with("running_var")) value = at::rand(value.sizes()).add_(0.5);
  }
  return out;
}

/// Names of the tensors that differ.
std::vector<std::string> changed(const Parameters& before, const Parameters& after) {
  std::vector<std::string> out;
  for (const auto& [name, value] : before) {
    if (!value.equal(after.at(name))) out.push_back(name);
  }
  return out;
}

Parameters copied(const Parameters& parameters) {
  Parameters out;
  for (const auto& [name, value] : parameters) out[name] = value.detach().clone();
  return out;
}

TEST(FileEvaluation, OfAnArchiveUsesTheRunningStatisticsAndLeavesThem) {
  const model::Model model = build_model(kNet, {}, model::ModelMode::Evaluation);
  EXPECT_EQ(layer_names(model), layer_names(build_model(kNet, {})));
  const Parameters parameters = trained_parameters(model);
  const Parameters before = copied(parameters);
  const at::Tensor x = at::randn({3, 1, 8, 8}), y = at::randint(3, {3}, at::kLong);
  const at::Tensor found = run_model(model, parameters, {x, y});
  EXPECT_THAT(changed(before, parameters), ElementsAre());
  // The forward of tests/golden/pt2/README.md after eval(), written by hand.
  const auto at = [&](const char* name) -> const at::Tensor& { return parameters.at(name); };
  const at::Tensor normal = at::batch_norm(at::conv2d(x, at("conv.weight"), at("conv.bias")), at("bn.weight"),
                                           at("bn.bias"), at("bn.running_mean"), at("bn.running_var"),
                                           /*training=*/false, 0.1, 1e-5, /*cudnn_enabled=*/false);
  const at::Tensor wanted = at::cross_entropy_loss(
      at::linear(at::flatten(at::relu(normal), 1).mul(at("scale")), at("fc.weight"), at("fc.bias")), y);
  EXPECT_TRUE(found.equal(wanted)) << found << wanted;
  const model::Model training = build_model(kNet, {});
  EXPECT_FALSE(run_model(training, parameters, {x, y}).equal(wanted));
  EXPECT_THAT(changed(before, parameters), ElementsAre("bn.num_batches_tracked", "bn.running_mean", "bn.running_var"));
}

TEST(FileEvaluation, OfAStageLeavesParametersAndBuffers) {
  for (const auto& [file, settings] : std::vector<std::pair<std::string, std::map<std::string, std::string>>>{
           {kNet, {}}, {kTraced, kImage}, {kScripted, kVector}}) {
    const model::Model model = build_model(file, settings, model::ModelMode::Evaluation);
    EXPECT_EQ(layer_names(model), layer_names(build_model(file, settings))) << file;
    std::vector<int> layers(model.layers.size());
    std::iota(layers.begin(), layers.end(), 0);
    stage::StageProgram program(model, layers, {}, {}, 1);
    program.evaluate();
    Parameters before;
    const auto state = [&] {
      Parameters out;
      for (const stage::Parameter& parameter : program.parameters())
        out[parameter.name] = parameter.value.detach().clone();
      for (const stage::Parameter& buffer : program.buffers()) out[buffer.name] = buffer.value.clone();
      return out;
    };
    before = state();
    ASSERT_TRUE(before.contains(file == kNet      ? "bn.num_batches_tracked"
                                : file == kTraced ? "model.blocks.0.norm.num_batches_tracked"
                                                  : "model.norm.num_batches_tracked"));
    const at::Tensor target = at::randint(3, {4}, at::kLong);
    const at::Tensor x = file == kNet      ? at::randn({4, 1, 8, 8})
                         : file == kTraced ? at::randn({4, 3, 8, 8})
                                           : at::randn({4, 8});
    const at::Tensor first = program.forward({}, {x, target}, 0, 0, false).loss;
    EXPECT_TRUE(program.forward({}, {x, target}, 1, 1, false).loss.equal(first)) << file;
    EXPECT_THAT(changed(before, state()), ElementsAre()) << file;
  }
}

TEST(FileEvaluation, OfAModelThatWasReadForTrainingIsRefused) {
  const model::Model model = build_model(kNet, {});
  stage::StageProgram program(model, {0}, {}, {{0, 0, -1}}, 1);
  EXPECT_THAT([&] { program.evaluate(); },
              ThrowsMessage<std::logic_error>("the model was read for training, not for evaluation"));
}

// ---- arguments

ProgramNode node_of(const std::string& name, std::vector<ProgramArgument> arguments) {
  ProgramNode out;
  out.name = name;
  out.target = "torch.ops.aten." + name;
  out.arguments = std::move(arguments);
  return out;
}

/// The last argument of an evaluating graph's only node.
ArgumentValue evaluated(ProgramNode node) {
  ProgramGraph graph;
  graph.nodes.push_back(std::move(node));
  return evaluating(std::move(graph)).nodes.at(0).arguments.back().value;
}

TEST(EvaluatingGraph, TurnsDropoutOffAndStatisticsOn) {
  const ValueIndex x{0}, mean{1};
  const ArgumentValue off = false;
  EXPECT_EQ(evaluated(node_of("dropout.default", {{"input", x}, {"p", 0.5}, {"train", true}})), off);
  // Arguments by position, like operands that the file does not name.
  EXPECT_EQ(evaluated(node_of("dropout.default", {{"", x}, {"", 0.5}, {"", true}})), off);
  EXPECT_EQ(evaluated(node_of("rrelu_.default", {{"self", x}, {"training", true}})), off);
  EXPECT_EQ(evaluated(node_of("lstm.input", {{"input", x}, {"dropout", 0.5}, {"train", true}})), off);
  EXPECT_EQ(evaluated(node_of("scaled_dot_product_attention.default", {{"query", x}, {"dropout_p", 0.5}})),
            ArgumentValue(0.0));
  EXPECT_EQ(evaluated(node_of("batch_norm.default", {{"input", x}, {"running_mean", mean}, {"training", true}})), off);
  EXPECT_EQ(
      evaluated(node_of("instance_norm.default", {{"input", x}, {"running_mean", mean}, {"use_input_stats", true}})),
      off);
}

TEST(EvaluatingGraph, KeepsWhatIsTheSameInBothModes) {
  const ValueIndex x{0};
  // Without running statistics, torch.nn normalises by the batch in both modes.
  const ArgumentValue on = true;
  EXPECT_EQ(evaluated(node_of("batch_norm.default", {{"input", x}, {"running_mean", {}}, {"training", true}})), on);
  EXPECT_EQ(
      evaluated(node_of("instance_norm.default", {{"input", x}, {"running_mean", {}}, {"use_input_stats", true}})), on);
  EXPECT_EQ(evaluated(node_of("lstm.input", {{"input", x}, {"has_biases", true}})), on);
  EXPECT_EQ(evaluated(node_of("add.Tensor", {{"self", x}, {"alpha", 0.5}})), ArgumentValue(0.5));
}

TEST(EvaluatingGraph, ReachesInnerGraphs) {
  auto inner = std::make_shared<ProgramGraph>();
  inner->nodes.push_back(node_of("dropout.default", {{"input", ValueIndex{0}}, {"p", 0.5}, {"train", true}}));
  ProgramNode node;
  node.target = "torch.ops.higher_order.wrap_with_set_grad_enabled";
  node.arguments = {{"", false}, {"", std::shared_ptr<const ProgramGraph>(inner)}};
  const auto found = std::get<std::shared_ptr<const ProgramGraph>>(evaluated(node));
  EXPECT_EQ(found->nodes.at(0).arguments.back().value, ArgumentValue(false));
  EXPECT_EQ(inner->nodes.at(0).arguments.back().value, ArgumentValue(true));
}

// ---- what the file does not say

/// x -> first -> loss, with a buffer "mean" and a counter.
class CheckEvaluation : public ::testing::Test {
 protected:
  CheckEvaluation() {
    sketch_.graph.mode = model::ModelMode::Evaluation;
    sketch_.graph.evaluation_advice = "export it again";
    sketch_.value("x", Origin::Input);
    for (const char* name : {"mean", "calls"}) {
      sketch_.graph.values[to_index(sketch_.value(name, Origin::Buffer))].source = to_int(sketch_.graph.tensors.size());
      sketch_.graph.tensors.push_back({.name = name, .shape = {}, .load = {}});
    }
    sketch_.node("first", "first", {"x"});
  }
  void add_in_place(const std::string& name, const std::string& written) {
    sketch_.in_place(sketch_.node(name, "first", {written, "first"}), written);
  }
  void check() { check_evaluation(sketch_.graph, sketch_.value("loss")); }

  Sketch sketch_;
};

TEST_F(CheckEvaluation, TakesACounterThatNothingReads) {
  add_in_place("add_", "calls");
  add_in_place("mul_", "mean");
  sketch_.in_place(sketch_.node("more_", "first", {"mul_"}), "mul_");
  sketch_.node("loss", "", {"first"});
  EXPECT_NO_THROW(check());
}

TEST_F(CheckEvaluation, RefusesABufferThatIsWrittenAndRead) {
  // The buffer is read before it is written, so the next microbatch reads what was written.
  sketch_.node("centred", "second", {"first", "mean"});
  add_in_place("mul_", "mean");
  sketch_.in_place(sketch_.node("more_", "first", {"mul_"}), "mul_");
  sketch_.node("loss", "", {"centred"});
  EXPECT_THAT(
      [&] { check(); },
      ThrowsMessage<FormatError>(
          "model.pt2: node \"mul_\" (torch.ops.aten.mul_.default) in module \"first\": changes buffer \"mean\", on "
          "which the loss depends, and the file does not say whether it does so in evaluation; export it again"));
  sketch_.graph.exact_evaluation = true;
  EXPECT_THAT([&] { check(); },
              ThrowsMessage<FormatError>(HasSubstr("also in evaluation; change it only in training")));
}

TEST_F(CheckEvaluation, RefusesRandomNumbersThatTheLossDependsOn) {
  sketch_.node("unused", "first", {"first"}).random = true;
  sketch_.node("noise", "second", {"first"}).random = true;
  sketch_.node("loss", "", {"noise"});
  EXPECT_THAT([&] { check(); },
              ThrowsMessage<FormatError>(
                  "model.pt2: node \"noise\" (torch.ops.aten.noise.default) in module \"second\": draws random "
                  "numbers, and the file does not say whether it does so in evaluation; export it again"));
  sketch_.graph.exact_evaluation = true;
  EXPECT_NO_THROW(check());
}

TEST(ObservedValues, AreWhatTheRootsDependOn) {
  // 0 -> 1 -> 2; 3 is written from 1 and read only by the node that makes 5 from 2 and 3 and writes 4.
  const std::vector<NodeEffects> nodes{
      {{0}, {1}, {}, {}}, {{1}, {2}, {}, {}}, {{1, 3}, {}, {3}, {}}, {{2, 3, 4}, {5}, {4}, {}, {4}}};
  EXPECT_THAT(observed_values(nodes, {2}, 6), ElementsAre(true, true, true, false, false, false));
  // If 5 is a root, 3 is observed, and so is what it is written from.
  EXPECT_THAT(observed_values(nodes, {5}, 6), ElementsAre(true, true, true, true, false, true));
}

// ---- layers

TEST(LayersLike, AreOneWhereTheyAreInTraining) {
  Sketch training;
  training.value("x", Origin::Input);
  training.value("mean", Origin::Buffer);
  training.in_place(training.node("a", "a", {"mean", "x"}), "mean");
  training.node("b", "b", {"a"});
  training.node("c", "c", {"b", "mean"});
  training.node("d", "d", {"c"});
  const Grouping trained = training.groups("d");
  ASSERT_EQ(trained.groups.size(), 2U);  // a to c use a buffer that is written
  EXPECT_THAT(trained.groups[0].parts, ElementsAre("a", "b", "c"));

  Sketch evaluation;
  evaluation.value("x", Origin::Input);
  evaluation.value("mean", Origin::Buffer);
  evaluation.node("a", "a", {"mean", "x"});
  evaluation.node("b", "b", {"a"});
  evaluation.node("c", "c", {"b", "mean"});
  evaluation.node("d", "d", {"c"});
  EXPECT_EQ(evaluation.groups("d").groups.size(), 4U);
  const Grouping like = layer_groups(evaluation.graph, evaluation.value("d"), {}, &trained);
  ASSERT_EQ(like.groups.size(), 2U);
  EXPECT_EQ(like.groups[0].name, "a");
  EXPECT_THAT(like.groups[0].nodes, ElementsAre(0, 1, 2));
  EXPECT_EQ(like.groups[1].name, "d");
}

}  // namespace
}  // namespace stagecraft::intake
