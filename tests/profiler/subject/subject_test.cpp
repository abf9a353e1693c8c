#include "profiler/subject/subject.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "executor/data/data_source.h"
#include "executor/model/model.h"
#include "tests/profiler/row_of_layers.h"
#include "tests/profiler/small_models.h"

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

using ::testing::SizeIs;

std::vector<at::Tensor> batch_of(const model::Model& model) { return Whole(model).batch; }

std::vector<at::Tensor> values(Subject& subject) {
  std::vector<at::Tensor> out;
  for (const stage::Parameter& parameter : subject.program().leaves()) out.push_back(parameter.value.detach().clone());
  return out;
}

std::vector<at::Tensor> gradients(Subject& subject) {
  std::vector<at::Tensor> out;
  for (const stage::Parameter& parameter : subject.program().leaves()) out.push_back(parameter.value.grad().clone());
  return out;
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) return false;
  }
  return true;
}

/// A watch that records its calls.
class Diary : public Watch {
 public:
  void begin(int layer) override { lines.push_back("+" + std::to_string(layer)); }
  void end(int layer) override { lines.push_back("-" + std::to_string(layer)); }
  void begin_step(int step) override { lines.push_back("step " + std::to_string(step)); }
  void begin_backward() override { lines.emplace_back("backward"); }
  void end_backward() override { lines.emplace_back("end"); }
  void begin_part(Tag tag) override { lines.push_back(name_of(tag.phase) + " " + std::to_string(tag.layer)); }
  void end_part() override { lines.emplace_back("end"); }
  void end_step() override { lines.emplace_back("end step"); }
  std::vector<StepShares> take() override { return {}; }
  const AttributedTrace& trace() const override { throw std::logic_error("nobody asks"); }
  std::int64_t unmapped() const override { return 0; }
  void pause() override {}
  void resume() override {}

  std::vector<std::string> lines;
};

TEST(Subject, TrainsWithoutMovingTheParameters) {
  for (const char* name : {"sgd", "adam", "adamw"}) {
    const model::Model model = tiny_mlp();
    Subject subject(model, {.name = name, .learning_rate = 1, .weight_decay = 0.5}, 1, {}, false);
    const std::vector<at::Tensor> before = values(subject);
    StepTimer timer(c10::kCPU);
    for (int step = 0; step < 3; ++step) subject.iterate(batch_of(model), step, timer);
    EXPECT_TRUE(same(values(subject), before)) << name;
    EXPECT_THAT(gradients(subject), SizeIs(before.size())) << name;
  }
}

TEST(Subject, KeepsItsGradientsBelowThoseOfOneMicrobatch) {
  const model::Model model = tiny_mlp();
  Subject subject(model, {}, 1, {}, false);
  StepTimer timer(c10::kCPU);
  subject.run_microbatches(batch_of(model), 1, false, timer);
  const std::vector<at::Tensor> alone = gradients(subject);
  for (int step = 0; step < 50; ++step) subject.iterate(batch_of(model), 0, timer);
  // Each update halves what the backward before it added to: the limit of g = (g + alone) / 2 is alone.
  const std::vector<at::Tensor> kept = gradients(subject);
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::allclose(kept[i], alone[i])) << i;
  subject.clear_gradients();
  for (const at::Tensor& gradient : gradients(subject)) EXPECT_EQ(gradient.count_nonzero().item<std::int64_t>(), 0);
}

TEST(Subject, ComputesTheSameWhileProfiled) {
  const model::Model model = tiny_mlp();
  Subject subject(model, {}, 1, {}, true);
  StepTimer timer(c10::kCPU);
  subject.iterate(batch_of(model), 4, timer);
  Subject watched(model, {}, 1, {}, true);
  Diary diary;
  watched.watch(batch_of(model), 4, diary);
  EXPECT_TRUE(same(gradients(watched), gradients(subject)));
}

TEST(Subject, ComputesTheSameGradientsWhereItCreatesThem) {
  const model::Model model = tiny_mlp();
  Subject subject(model, {}, 1, {}, false);
  Diary diary;
  subject.watch(batch_of(model), 4, diary);  // has none to add to
  const std::vector<at::Tensor> first = gradients(subject);
  subject.watch(batch_of(model), 4, diary);
  EXPECT_FALSE(same(gradients(subject), first));
  const at::Tensor old = subject.program().leaves().front().value.grad();
  subject.watch(batch_of(model), 4, diary, /*creates_gradients=*/true);
  EXPECT_TRUE(same(gradients(subject), first));
  EXPECT_NE(subject.program().leaves().front().value.grad().data_ptr(), old.data_ptr());
}

TEST(Subject, AddsTheGradientsOfMicrobatchesInEitherOrder) {
  const model::Model model = tiny_mlp();
  Subject subject(model, {}, 1, {}, false);
  StepTimer timer(c10::kCPU);
  subject.run_microbatches(batch_of(model), 1, false, timer);
  std::vector<at::Tensor> twice;
  for (const at::Tensor& gradient : gradients(subject)) twice.push_back(gradient + gradient);
  for (const bool in_flight : {false, true}) {
    subject.run_microbatches(batch_of(model), 2, in_flight, timer);
    EXPECT_TRUE(same(gradients(subject), twice)) << in_flight;
  }
  EXPECT_THAT(timer.take(), SizeIs(3));
}

TEST(Subject, ReportsTheOrderOfAStepToAWatch) {
  const model::Model model = scale_exp_sum();
  Subject subject(model, {}, 1, {}, false);
  Diary diary;
  subject.watch(row_batch(), 7, diary);
  EXPECT_THAT(diary.lines, ElementsAre("data 0", "end", "step 7", "+0", "-0", "+1", "-1", "+2", "-2", "backward", "end",
                                       "optimizer 0", "end", "end step"));
}

// Layers 0 and 2 have parameters; layer 1 and the sum have none.
TEST(Subject, UpdatesLayerByLayerWhereAsked) {
  const auto scale = [](const model::LayerCall& c) {
    return std::vector<at::Tensor>{at::mul(c.inputs[0], c.parameters[0])};
  };
  const model::Model model = row_of_layers(
      {hand_layer("a", 256, scale),
       hand_layer("b", 0, [](const model::LayerCall& c) { return std::vector<at::Tensor>{at::exp(c.inputs[0])}; }),
       hand_layer("c", 256, scale),
       hand_layer("d", 0, [](const model::LayerCall& c) { return std::vector<at::Tensor>{at::sum(c.inputs[0])}; })});
  Subject subject(model, {}, 1, {}, true);
  Diary diary;
  subject.watch(row_batch(), 0, diary);
  std::vector<std::string> updates;
  for (const std::string& line : diary.lines) {
    if (line.starts_with("optimizer")) updates.push_back(line);
  }
  EXPECT_THAT(updates, ElementsAre("optimizer 0", "optimizer 2"));
}

TEST(Subject, CallsBeforeAndAfterTheBackwardAlone) {
  const model::Model model = scale_exp_sum();
  Subject subject(model, {}, 1, {}, false);
  StepTimer timer(c10::kCPU);
  subject.iterate(row_batch(), 0, timer);
  Diary diary;
  const auto nonzero = [&] { return gradients(subject).front().count_nonzero().item<std::int64_t>(); };
  subject.observe(
      row_batch(), diary,
      [&] {
        EXPECT_EQ(nonzero(), 0);  // the gradients of the previous iteration are cleared
        diary.lines.emplace_back("before");
      },
      [&] {
        EXPECT_EQ(nonzero(), 256);
        diary.lines.emplace_back("after");
      });
  EXPECT_THAT(diary.lines, ElementsAre("+0", "-0", "+1", "-1", "+2", "-2", "before", "after"));
}

TEST(StepTimer, HasATimeForEachIterationSinceItWasAsked) {
  const model::Model model = scale_exp_sum();
  Subject subject(model, {}, 1, {}, false);
  StepTimer timer(c10::kCPU);
  EXPECT_THAT(timer.take(), IsEmpty());
  for (int step = 0; step < 3; ++step) subject.iterate(row_batch(), step, timer);
  EXPECT_THAT(timer.take(), SizeIs(3));
  EXPECT_THAT(timer.take(), IsEmpty());
}

}  // namespace

}  // namespace stagecraft::profiler
