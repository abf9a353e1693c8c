#include "profiler/layer_clock.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <numeric>

#include "executor/data_source.h"
#include "executor/models/blocks.h"

namespace stagecraft {
namespace {

/// A clock that advances by one second each time it is read.
struct Counter {
  double seconds = 0;
  std::function<double()> read() {
    return [this] { return ++seconds; };
  }
};

/// A model as one stage, with a microbatch of 2.
struct Whole {
  explicit Whole(Model m) : model(std::move(m)), program(model, layers(model), {}, {}, 1) {
    batch = make_data_source("synthetic", model, 1)->batch(0, 0, 1, 2, program.data_inputs());
  }
  static std::vector<int> layers(const Model& model) {
    std::vector<int> out(model.layers.size());
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  Flight forward(LayerObserver* observer) { return program.forward({}, batch, 0, 0, true, observer); }
  void watch(LayerClock& clock) {
    Flight flight = forward(&clock);
    clock.begin_backward();
    (void)program.backward(std::move(flight), {});
    clock.end_backward();
  }
  std::size_t count() const { return model.layers.size(); }

  Model model;
  StageProgram program;
  std::vector<at::Tensor> batch;
};

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

using Options = std::map<std::string, std::string>;
struct Small {
  std::string name;
  Options set;
};

class LayerClockOn : public testing::TestWithParam<Small> {};

TEST_P(LayerClockOn, GivesEveryBackwardNodeToALayer) {
  Whole whole(build_model(GetParam().name, GetParam().set));
  LayerClock clock(whole.count(), whole.program.parameters());
  whole.watch(clock);
  EXPECT_EQ(clock.unmapped(), 0);
}

TEST_P(LayerClockOn, GivesEveryLayerWithParametersABackward) {
  Whole whole(build_model(GetParam().name, GetParam().set));
  LayerClock clock(whole.count(), whole.program.parameters());
  whole.watch(clock);
  for (const Parameter& parameter : whole.program.parameters()) {
    EXPECT_GT(clock.backward()[static_cast<std::size_t>(parameter.layer)], 0) << parameter.name;
  }
  for (std::size_t layer = 0; layer < whole.count(); ++layer) EXPECT_GT(clock.forward()[layer], 0) << layer;
}

TEST_P(LayerClockOn, LosesNoTimeOfTheBackward) {
  Whole whole(build_model(GetParam().name, GetParam().set));
  Counter counter;
  LayerClock clock(whole.count(), whole.program.parameters(), nullptr, counter.read());
  Flight flight = whole.forward(&clock);
  clock.begin_backward();
  const double begin = counter.seconds;
  (void)whole.program.backward(std::move(flight), {});
  clock.end_backward();
  EXPECT_EQ(sum(clock.backward()), counter.seconds - begin);
}

INSTANTIATE_TEST_SUITE_P(
    EveryModel, LayerClockOn,
    testing::Values(Small{"mlp", {{"width", "8"}}}, Small{"convnet", {{"channels", "4"}}},
                    Small{"alexnet", {{"image", "63"}, {"width", "16"}}},
                    Small{"vgg16", {{"image", "32"}, {"channels", "4"}, {"width", "16"}, {"classes", "10"}}},
                    Small{"resnet18", {{"image", "32"}, {"channels", "4"}, {"classes", "10"}}},
                    Small{"resnet50", {{"image", "32"}, {"channels", "4"}, {"classes", "10"}}},
                    Small{"gnmt",
                          {{"layers", "4"},
                           {"hidden", "8"},
                           {"vocabulary", "16"},
                           {"source_sequence", "3"},
                           {"target_sequence", "4"}}},
                    Small{"transformer",
                          {{"layers", "2"},
                           {"width", "16"},
                           {"heads", "2"},
                           {"vocabulary", "16"},
                           {"feedforward", "8"},
                           {"sequence", "4"}}},
                    Small{"gpt",
                          {{"layers", "2"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "16"}, {"sequence", "4"}}}),
    [](const auto& tested) { return tested.param.name; });

TEST(LayerClock, CoversEveryBuiltInModel) {
  // The list above, by hand; a new model must join it.
  EXPECT_EQ(layer_sources().size(), 9U);
}

Model tiny() { return build_model("mlp", {{"inputs", "4"}, {"width", "8"}, {"layers", "2"}, {"classes", "3"}}); }

TEST(LayerClock, TakesOneIntervalOfEachForward) {
  Whole whole(tiny());
  Counter counter;
  LayerClock clock(whole.count(), whole.program.parameters(), nullptr, counter.read());
  (void)whole.forward(&clock);
  EXPECT_EQ(clock.forward(), std::vector<double>(whole.count(), 1));  // one reading at each end, a second apart
}

TEST(LayerClock, CountsTheNodesOfEachLayer) {
  Whole whole(tiny());
  Counter counter;
  LayerClock clock(whole.count(), whole.program.parameters(), nullptr, counter.read());
  whole.watch(clock);
  // A second from the start of each node to that of the next; from the engine's start to the first node one more,
  // which is the first node's. fc1: addmm, the weight's transposition and two accumulations; no gradient goes to the
  // image. fc2 the same, relu one, the loss: nll and log_softmax.
  EXPECT_EQ(clock.backward(), (std::vector<double>{4, 1, 4, 3}));
}

TEST(LayerClock, AddsUpSeveralMicrobatchesUntilReset) {
  Whole whole(tiny());
  Counter counter;
  LayerClock clock(whole.count(), whole.program.parameters(), nullptr, counter.read());
  whole.watch(clock);
  whole.watch(clock);
  EXPECT_EQ(clock.backward(), (std::vector<double>{8, 2, 8, 6}));
  clock.reset();
  EXPECT_EQ(sum(clock.forward()) + sum(clock.backward()), 0);
  whole.watch(clock);
  EXPECT_EQ(clock.backward(), (std::vector<double>{4, 1, 4, 3}));
}

TEST(LayerClock, KeepsTiedParametersApart) {
  Whole whole(
      build_model("gpt", {{"layers", "1"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "16"}, {"sequence", "4"}}));
  std::map<std::string, std::vector<int>> holders;
  for (const Parameter& parameter : whole.program.parameters()) holders[parameter.name].push_back(parameter.layer);
  int tied = 0;
  for (const auto& [name, layers] : holders) tied += layers.size() > 1 ? 1 : 0;
  EXPECT_EQ(tied, 1);
  LayerClock clock(whole.count(), whole.program.parameters());
  whole.watch(clock);
  for (const auto& [name, layers] : holders) {
    for (const int layer : layers) EXPECT_GT(clock.backward()[static_cast<std::size_t>(layer)], 0) << name;
  }
}

TEST(LayerClock, TakesItsHooksOffAgain) {
  Whole whole(tiny());
  const auto hooks = [&] {
    std::size_t count = 0;
    for (const Parameter& parameter : whole.program.parameters()) {
      const auto accumulator = torch::autograd::impl::grad_accumulator(parameter.value);
      count += accumulator->pre_hooks().size();
    }
    return count;
  };
  // Held, or the accumulators would go with the clock.
  std::vector<std::shared_ptr<torch::autograd::Node>> held;
  for (const Parameter& parameter : whole.program.parameters()) {
    held.push_back(torch::autograd::impl::grad_accumulator(parameter.value));
  }
  {
    LayerClock clock(whole.count(), whole.program.parameters());
    EXPECT_EQ(hooks(), 4U);
  }
  EXPECT_EQ(hooks(), 0U);
  (void)whole.program.backward(whole.forward(nullptr), {});  // nobody is called who is gone
}

TEST(LayerClock, LeavesForeignHooksAlone) {
  struct Foreign : torch::autograd::FunctionPreHook {
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
      return gradients;
    }
  };
  Whole whole(tiny());
  const auto accumulator = torch::autograd::impl::grad_accumulator(whole.program.parameters().front().value);
  accumulator->add_pre_hook(std::make_unique<Foreign>());
  { LayerClock clock(whole.count(), whole.program.parameters()); }
  EXPECT_EQ(accumulator->pre_hooks().size(), 1U);
}

TEST(LayerClock, WorksAgainAfterAnotherClock) {
  Whole whole(tiny());
  for (int round = 0; round < 2; ++round) {
    Counter counter;
    LayerClock clock(whole.count(), whole.program.parameters(), nullptr, counter.read());
    whole.watch(clock);
    EXPECT_EQ(clock.backward(), (std::vector<double>{4, 1, 4, 3})) << round;
    EXPECT_EQ(clock.unmapped(), 0);
  }
}

}  // namespace
}  // namespace stagecraft
