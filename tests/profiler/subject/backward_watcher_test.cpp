#include "profiler/subject/backward_watcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "tests/profiler/row_of_layers.h"
#include "tests/profiler/small_models.h"

namespace stagecraft::profiler {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

/// Reports to a watcher which layers run, except one.
struct Telling : stage::LayerObserver {
  explicit Telling(BackwardWatcher& w, int left_out = -1) : watcher(w), silent(left_out) {}
  void begin(int layer) override {
    if (layer != silent) watcher.begin(layer);
  }
  void end(int layer) override {
    if (layer != silent) watcher.end(layer);
  }
  BackwardWatcher& watcher;
  int silent;
};

/// What a watcher reports for one step of consecutive layers.
struct Heard {
  Heard() : model(scale_exp_sum()), program(model, {0, 1, 2}, {}, {}, 1) {}

  void step(int left_out = -1) {
    Telling telling(watcher, left_out);
    stage::Flight flight = program.forward({}, row_batch(), 0, 0, true, &telling);
    watcher.begin_backward();
    (void)program.backward(std::move(flight), {});
    watcher.end_backward();
  }

  model::Model model;
  stage::StageProgram program;
  std::vector<std::pair<int, Phase>> nodes;
  BackwardWatcher watcher{program.parameters(), [this](int layer, Phase phase) { nodes.emplace_back(layer, phase); }};
};

// One node for the sum, two for the exponentials, one for the product, and the accumulation of its weight's gradient.
TEST(BackwardWatcher, NamesTheLayerThatMadeEachNodeInTheOrderOfTheBackward) {
  Heard heard;
  heard.step();
  EXPECT_THAT(heard.nodes, ElementsAre(Pair(2, Phase::Backward), Pair(1, Phase::Backward), Pair(1, Phase::Backward),
                                       Pair(0, Phase::Backward), Pair(0, Phase::Accumulate)));
  EXPECT_EQ(heard.watcher.unmapped(), 0);
}

TEST(BackwardWatcher, CountsNodesOfALayerThatItWasNotToldOf) {
  Heard heard;
  heard.step(1);
  EXPECT_THAT(heard.nodes, ElementsAre(Pair(2, Phase::Backward), Pair(0, Phase::Backward), Pair(0, Phase::Accumulate)));
  EXPECT_EQ(heard.watcher.unmapped(), 2);
}

TEST(BackwardWatcher, StartsAgainAfterAReset) {
  Heard heard;
  heard.step(1);
  heard.watcher.reset();
  EXPECT_EQ(heard.watcher.unmapped(), 0);
  heard.nodes.clear();
  heard.step();
  EXPECT_EQ(heard.nodes.size(), 5u);
  EXPECT_EQ(heard.watcher.unmapped(), 0);
}

TEST(BackwardWatcher, ForgetsForwardsOnAReset) {
  Heard heard;
  Telling telling(heard.watcher);
  stage::Flight flight = heard.program.forward({}, row_batch(), 0, 0, true, &telling);
  heard.watcher.reset();
  heard.watcher.begin_backward();
  (void)heard.program.backward(std::move(flight), {});
  heard.watcher.end_backward();
  EXPECT_THAT(heard.nodes, ElementsAre(Pair(0, Phase::Accumulate)));  // identified by its parameter, not by its forward
  EXPECT_EQ(heard.watcher.unmapped(), 4);
}

TEST(BackwardWatcher, TakesItsHooksOffAgain) {
  Whole whole(tiny_mlp());
  const auto hooks = [&] {
    std::size_t count = 0;
    for (const stage::Parameter& parameter : whole.program.parameters()) {
      const auto accumulator = torch::autograd::impl::grad_accumulator(parameter.value);
      count += accumulator->pre_hooks().size();
    }
    return count;
  };
  // Kept, so that the accumulators are not destroyed with the watcher.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;
  for (const stage::Parameter& parameter : whole.program.parameters()) {
    accumulators.push_back(torch::autograd::impl::grad_accumulator(parameter.value));
  }
  {
    BackwardWatcher watcher(whole.program.parameters(), [](int, Phase) {});
    EXPECT_EQ(hooks(), 4U);
  }
  EXPECT_EQ(hooks(), 0U);
  (void)whole.program.backward(whole.forward(nullptr), {});  // the destroyed watcher is not called
}

TEST(BackwardWatcher, LeavesForeignHooksAlone) {
  struct Foreign : torch::autograd::FunctionPreHook {
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
      return gradients;
    }
  };
  Whole whole(tiny_mlp());
  const auto accumulator = torch::autograd::impl::grad_accumulator(whole.program.parameters().front().value);
  accumulator->add_pre_hook(std::make_unique<Foreign>());
  {
    BackwardWatcher watcher(whole.program.parameters(), [](int, Phase) {});
  }
  EXPECT_EQ(accumulator->pre_hooks().size(), 1U);
}

TEST(BackwardWatcher, IgnoresOtherBackwards) {
  Whole whole(tiny_mlp());
  int heard = 0;
  BackwardWatcher watcher(whole.program.parameters(), [&](int, Phase) { ++heard; });
  (void)whole.program.backward(whole.forward(nullptr), {});
  EXPECT_EQ(heard, 0);
}

TEST(BackwardWatcher, DistinguishesAccumulationsFromTheRest) {
  Whole whole(tiny_mlp());
  int accumulations = 0;
  BackwardWatcher watcher(whole.program.parameters(),
                          [&](int, Phase phase) { accumulations += phase == Phase::Accumulate; });
  struct Observer : stage::LayerObserver {
    explicit Observer(BackwardWatcher& w) : watcher(w) {}
    void begin(int layer) override { watcher.begin(layer); }
    void end(int layer) override { watcher.end(layer); }
    BackwardWatcher& watcher;
  } observer(watcher);
  stage::Flight flight = whole.forward(&observer);
  watcher.begin_backward();
  (void)whole.program.backward(std::move(flight), {});
  watcher.end_backward();
  EXPECT_EQ(accumulations, 4);  // two weights, two biases
  EXPECT_EQ(watcher.unmapped(), 0);
}

}  // namespace
}  // namespace stagecraft::profiler
