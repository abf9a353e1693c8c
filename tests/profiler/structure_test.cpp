#include "profiler/structure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "costmodel/format/graph_json.h"
#include "costmodel/index.h"
#include "executor/model/model.h"
#include "profiler/subject/subject.h"
#include "tests/profiler/small_models.h"
#include "tests/support/places.h"

namespace stagecraft::profiler {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Structure structure(const model::Model& model, StructureOptions options = {}) {
  const std::int64_t samples = std::max<std::int64_t>(2, model.least_samples);
  const auto batch = data::make_data_source("synthetic", model, 1)->batch(0, 0, 1, samples, inputs_read(model));
  return structure_of(model, batch, samples, options);
}

StructureOptions run_it() {
  StructureOptions out;
  out.run = true;
  return out;
}

StructureOptions without_work() {
  StructureOptions out;
  out.count_work = false;
  return out;
}

/// Shapes, bytes and work are those that a run shows.
void expect_as_run(const std::string& name, const model::Model& model, at::ScalarType compute = at::kFloat,
                   const StateTypes& types = {}) {
  SCOPED_TRACE(name);
  StructureOptions shapes;
  shapes.placement.compute = compute;
  shapes.placement.types = types;
  StructureOptions run = shapes;
  run.run = true;
  const Structure found = structure(model, shapes);
  EXPECT_THAT(found.ran, IsEmpty());
  EXPECT_EQ(format::graph_json(found.graph), format::graph_json(structure(model, run).graph));
}

TEST(Structure, OfBuiltInModelsIsThatOfARun) {
  for (const auto& [name, settings] : small_models()) {
    if (name != "gnmt") expect_as_run(name, intake::build_model(name, settings));
  }
  expect_as_run(
      "gpt without dropout",
      intake::build_model(
          "gpt",
          {{"layers", "1"}, {"width", "24"}, {"vocabulary", "16"}, {"sequence", "8"}, {"dropout_percent", "0"}}));
}

TEST(Structure, OfModelFilesIsThatOfARun) {
  expect_as_run("net.pt2", intake::build_model(source_folder() + "/tests/golden/pt2/net.pt2", {}));
  const std::string scripted = source_folder() + "/tests/golden/torchscript/cnn_traced.pt";
  expect_as_run("cnn_traced.pt",
                intake::build_model(
                    scripted, {{"input.x", "float32[3,8,8]"}, {"input.target", "int64[]"}, {"range.target", "0..3"}}));
}

// 64 blocks of width 8192 have 64 * 12 * 8192^2 weights, 192 GiB, besides embeddings, biases and norms.
TEST(Structure, TakesNoMemoryForTheParameters) {
  const model::Model model = intake::build_model(
      "gpt", {{"layers", "64"}, {"width", "8192"}, {"heads", "64"}, {"vocabulary", "128"}, {"sequence", "2048"}});
  const Structure found = structure(model);
  EXPECT_THAT(found.ran, IsEmpty());
  Bytes parameters;
  double flops = 0;
  for (const Layer& layer : found.graph.layers) {
    parameters += layer.parameter_bytes;
    if (layer.forward_work) flops += layer.forward_work->flops.value;
  }
  constexpr double kWeights = 64.0 * 12 * 8192 * 8192;
  EXPECT_NEAR(static_cast<double>(parameters.value), 4 * kWeights, 0.01 * 4 * kWeights);
  // Each weight is multiplied with each of 2 * 2048 tokens; attention adds 4 * 2048 * 8192 a token and block.
  constexpr double kTokens = 2.0 * 2048;
  constexpr double kFlops = kTokens * (2 * kWeights + 64.0 * 4 * 2048 * 8192);
  EXPECT_NEAR(flops, kFlops, 0.01 * kFlops);
}

/// x + the first of x, which is read as a number.
model::Model reads_a_value() {
  model::Model model;
  const model::ValueRef x = model::append(model, {.name = "x", .dtype = "float32", .shape = {3}});
  model::append(model, {.name = "loss",
                        .kind = "Number",
                        .inputs = {x},
                        .parameters = {model::ones("scale", {3})},
                        .forward = [](const model::LayerCall& call) -> std::vector<at::Tensor> {
                          const double number = call.inputs[0].flatten()[0].item<double>();
                          return {call.inputs[0].mul(call.parameters[0]).add(number).sum()};
                        }});
  return model;
}

TEST(Structure, RunsWhatNeedsValuesOrMemory) {
  const Structure number = structure(reads_a_value());
  EXPECT_THAT(number.ran, HasSubstr("layer \"loss\", forward"));
  EXPECT_EQ(format::graph_json(number.graph), format::graph_json(structure(reads_a_value(), run_it()).graph));
  const std::vector<Small> small = small_models();
  const auto settings = std::ranges::find(small, "gnmt", &Small::name)->set;
  EXPECT_THAT(structure(intake::build_model("gnmt", settings)).ran, HasSubstr("aten::lstm"));
}

TEST(Structure, OfALowerPrecisionIsThatOfARun) {
  for (const auto& [name, settings] : small_models()) {
    if (name != "gnmt") expect_as_run(name, intake::build_model(name, settings), at::kBFloat16);
  }
  expect_as_run("net.pt2", intake::build_model(source_folder() + "/tests/golden/pt2/net.pt2", {}), at::kBFloat16);
}

TEST(Structure, OfParametersInBfloat16IsThatOfARun) {
  for (const auto& [name, settings] : small_models()) {
    if (name != "gnmt")
      expect_as_run(name, intake::build_model(name, settings), at::kBFloat16, {.parameters = StateType::Bfloat16});
  }
  expect_as_run("net.pt2", intake::build_model(source_folder() + "/tests/golden/pt2/net.pt2", {}), at::kBFloat16,
                {.parameters = StateType::Bfloat16});
}

TEST(Structure, HasTheTypesOfWhatTrainingKeeps) {
  StructureOptions options;
  options.placement.compute = at::kBFloat16;
  options.optimizer = {.name = "adam", .ema_decay = 0.9};
  options.optimizer.types = options.placement.types = {StateType::Bfloat16, StateType::Float32, StateType::Bfloat16};
  const Graph graph = structure(tiny_mlp(), options).graph;
  EXPECT_EQ(graph.types, options.placement.types);
  EXPECT_EQ(graph.optimizer_state_values, 4) << "two moments in bfloat16, and a float32 average";
  const Layer& fc1 = graph.layers.at(to_index(layer_index(graph, "fc1")));
  EXPECT_EQ(fc1.parameter_bytes, Bytes((4 * 8 + 8) * 2));
  EXPECT_EQ(fc1.gradient_bytes, Bytes((4 * 8 + 8) * 4));
  EXPECT_EQ(fc1.parameter_tensors.front().dtype, "bfloat16");
}

// x [2, 4] -> fc1 -> [2, 8] -> relu -> [2, 8] -> fc2 -> [2, 3]: fc1 keeps x, relu its result, fc2 nothing more.
TEST(Structure, SaysWhatTrainingKeepsInMemory) {
  StructureOptions options;
  options.optimizer.name = "adamw";
  const Graph graph = structure(tiny_mlp(), options).graph;
  EXPECT_EQ(graph.optimizer, "adamw");
  EXPECT_EQ(graph.optimizer_state_values, 2);
  const auto layer = [&](const char* id) { return graph.layers.at(to_index(layer_index(graph, id))); };
  EXPECT_EQ(layer("fc1").saved_bytes, Bytes(2 * 4 * 4));
  EXPECT_EQ(layer("relu1").saved_bytes, Bytes(2 * 8 * 4));
  EXPECT_EQ(layer("fc2").saved_bytes, Bytes(0));
  EXPECT_EQ(layer("fc1").gradient_bytes, Bytes((4 * 8 + 8) * 4));
}

TEST(Structure, HasNoWorkIfItIsNotWanted) {
  const Structure found = structure(tiny_mlp(), without_work());
  EXPECT_TRUE(
      std::ranges::none_of(found.graph.layers, [](const Layer& layer) { return layer.forward_work.has_value(); }));
}

}  // namespace
}  // namespace stagecraft::profiler
