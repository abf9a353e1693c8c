#include "profiler/subject/model_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/data/data_source.h"
#include "executor/model/model.h"

namespace stagecraft::profiler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// The sum of x [3, samples] where the mask computed from x is false. Nothing reads the other two inputs.
model::Model masked() {
  model::Model model;
  model::ModelInput x{.name = "x", .dtype = "float32", .shape = {3}};
  x.batch_axis = 1;
  model::ModelInput unread{.name = "unread", .dtype = "int64", .shape = {5}, .classes = 2};
  unread.batch_axis = 1;
  model::ModelInput mask{.name = "mask", .dtype = "", .shape = {}};
  mask.derive = [](std::span<const at::Tensor> sources) { return sources[0].unsqueeze(0).gt(0); };
  mask.sources = {0};
  model::ModelInput unmade = mask;
  unmade.name = "unmade";
  const model::ValueRef in = model::append(model, x);
  model::append(model, unread);
  const model::ValueRef hidden = model::append(model, mask);
  model::append(model, unmade);
  model::append(model, {.name = "loss",
                        .kind = "Masked",
                        .inputs = {in, hidden},
                        .parameters = {},
                        .forward = [](const model::LayerCall& call) -> std::vector<at::Tensor> {
                          return {call.inputs[0].masked_fill(call.inputs[1].squeeze(0), 0).sum()};
                        }});
  return model;
}

TEST(ModelGraph, TakesInputsAsTheyCome) {
  const model::Model model = masked();
  ASSERT_THAT(inputs_read(model), ElementsAre(0, 2));
  const auto batch = data::make_data_source("synthetic", model, 1)->batch(0, 0, 1, 4, inputs_read(model));
  const Graph graph = model_graph(model, batch, layer_outputs(model, batch, 1, {}), 4);
  ASSERT_EQ(graph.layers.size(), 5U);
  const auto is = [&](std::size_t layer) { return graph.layers[layer].outputs; };
  EXPECT_THAT(is(0), ElementsAre(Output{Bytes(3 * 4 * 4), {3, 4}, "float32", false}));
  EXPECT_THAT(is(1), ElementsAre(Output{Bytes(5 * 4 * 8), {5, 4}, "int64", false}));
  EXPECT_THAT(is(2), ElementsAre(Output{Bytes(3 * 4), {1, 3, 4}, "bool", false}));
  EXPECT_THAT(is(3), IsEmpty());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(graph.layers[i].kind, kInputKind);
  EXPECT_THAT(graph.edges, ElementsAre(Edge{0, 4, 0}, Edge{2, 4, 0}));
}

TEST(ModelGraph, CountsFrozenParametersApart) {
  model::Model model = masked();
  model.layers[0].parameters = {model::zeros("trained", {2}), model::zeros("frozen", {5})};
  model.layers[0].parameters[1].trainable = false;
  const auto batch = data::make_data_source("synthetic", model, 1)->batch(0, 0, 1, 4, inputs_read(model));
  const Graph graph = model_graph(model, batch, layer_outputs(model, batch, 1, {}), 4);
  EXPECT_EQ(graph.layers.back().parameter_bytes, Bytes(2 * 4));
  EXPECT_EQ(graph.layers.back().frozen_bytes, Bytes(5 * 4));
  EXPECT_EQ(graph.layers.back().written_bytes, Bytes(0));
}

TEST(ModelGraph, NamesParametersAndTheBuffersThatReplicasExchange) {
  model::Model model = masked();
  model.layers[0].parameters = {model::zeros("weight", {2, 3}),
                                {.name = "mean", .shape = {3}, .trainable = false, .decay = 0.9},
                                {.name = "steps", .shape = {}, .trainable = false, .dtype = at::kLong, .decay = 1.0},
                                {.name = "table", .shape = {7}, .trainable = false},
                                {.name = "state", .shape = {4}, .trainable = false, .written = true},
                                model::zeros("bias", {2})};
  const auto batch = data::make_data_source("synthetic", model, 1)->batch(0, 0, 1, 4, inputs_read(model));
  const Layer layer = model_graph(model, batch, layer_outputs(model, batch, 1, {}), 4).layers.back();
  EXPECT_THAT(layer.parameter_tensors,
              ElementsAre(StateTensor{"weight", {2, 3}, "float32"}, StateTensor{"bias", {2}, "float32"}));
  EXPECT_THAT(layer.exchanged_buffers,
              ElementsAre(StateTensor{"mean", {3}, "float32"}, StateTensor{"steps", {}, "int64"}));
}

TEST(ModelGraph, SaysWhatForwardsWriteAndWhatReplicasCannotReplay) {
  model::Model model = masked();
  const auto graph_with = [&](std::optional<double> decay, bool written) {
    model.layers[0].parameters = {
        {.name = "mean", .shape = {3}, .trainable = false, .decay = decay, .written = written},
        {.name = "frozen", .shape = {5}, .trainable = false}};
    const auto batch = data::make_data_source("synthetic", model, 1)->batch(0, 0, 1, 4, inputs_read(model));
    return model_graph(model, batch, layer_outputs(model, batch, 1, {}), 4).layers.back();
  };
  EXPECT_EQ(graph_with(0.9, false).written_bytes, Bytes(3 * 4));
  EXPECT_TRUE(graph_with(0.9, false).replicable);
  EXPECT_EQ(graph_with({}, true).written_bytes, Bytes(3 * 4));
  EXPECT_FALSE(graph_with({}, true).replicable);
}

TEST(ModelGraph, SaysWhatTheLossOfABatchFollowsFrom) {
  model::Model model = masked();
  const auto whole = [&](model::LossKind kind) {
    model.loss_kind = kind;
    const auto batch = data::make_data_source("synthetic", model, 1)->batch(0, 0, 1, 4, inputs_read(model));
    return model_graph(model, batch, layer_outputs(model, batch, 1, {}), 4).whole_batch_loss;
  };
  EXPECT_FALSE(whole(model::LossKind::Mean));
  EXPECT_FALSE(whole(model::LossKind::Sum));
  EXPECT_TRUE(whole(model::LossKind::Across));
}

TEST(ModelGraph, AnnouncesLayersInTheOrderInWhichTheyRun) {
  model::Model model = masked();
  const model::ValueRef loss{0, 0};
  model::append(model, {.name = "twice",
                        .kind = "Twice",
                        .inputs = {loss},
                        .parameters = {},
                        .forward = [](const model::LayerCall& call) -> std::vector<at::Tensor> {
                          return {call.inputs[0].mul(2)};
                        }});
  const auto batch = data::make_data_source("synthetic", model, 1)->batch(0, 0, 1, 4, inputs_read(model));
  std::vector<int> seen;
  const auto outputs = layer_outputs(announcing(model, [&](int layer) { seen.push_back(layer); }), batch, 1, {});
  EXPECT_THAT(seen, ElementsAre(0, 1));
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_EQ(outputs[1][0].item<float>(), 2 * outputs[0][0].item<float>());
}

}  // namespace
}  // namespace stagecraft::profiler
