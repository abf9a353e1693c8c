#include "profiler/layers/measured_memory.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sum.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <utility>

#include "executor/data/data_source.h"
#include "executor/device/memory_tracker.h"
#include "executor/intake/layer_sources.h"
#include "tests/profiler/row_of_layers.h"

namespace stagecraft::profiler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Three layers, the last of which returns a loss of 4 bytes.
std::vector<Layer> three_layers() {
  std::vector<Layer> out(3);
  out[0].outputs = {{Bytes(1000), {250}, "float32", true}};
  out[1].outputs = {{Bytes(1000), {250}, "float32", true}};
  out[2].outputs = {{Bytes(4), {}, "float32", true}};
  return out;
}

void expect_saved(const std::vector<Layer>& layers, const std::vector<std::int64_t>& bytes) {
  ASSERT_EQ(layers.size(), bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(layers[i].saved_bytes, Bytes(bytes[i])) << i;
}

TEST(FillLayerBytes, CountsLossAndItsGradientBesideEarlierBackwards) {
  std::vector<Layer> layers = three_layers();
  // Layer 0: 100 + 90 + the loss and its gradient, 8. Layer 1: 100 + 50 + 30 + 8. Layer 2: 100 + 50 + 10 + 20.
  EXPECT_EQ(fill_layer_bytes(layers, {100, 50, 10}, {90, 30, 20}), Bytes(198));
  expect_saved(layers, {100, 50, 10});
  EXPECT_EQ(layers[0].workspace_bytes, Bytes(90));
  EXPECT_EQ(layers[1].workspace_bytes, Bytes(30));
  EXPECT_EQ(layers[2].workspace_bytes, Bytes(20));
  // The last layer's own backward already includes both: 100 + 50 + 10 + 39.
  EXPECT_EQ(fill_layer_bytes(layers, {100, 50, 10}, {90, 30, 39}), Bytes(199));
}

TEST(FillLayerBytes, TakesWhatALayerReleasesOffTheLayersAfterIt) {
  std::vector<Layer> layers = three_layers();
  // Layer 1 releases 30, so only 20 of layer 2's 50 add to what layer 0 left.
  EXPECT_EQ(fill_layer_bytes(layers, {100, -30, 50}, {0, 0, 0}), Bytes(120));
  expect_saved(layers, {100, 0, 20});
  // The rest of the release carries over to the next layer: -30 + 20 + 15 = 5.
  (void)fill_layer_bytes(layers, {-30, 20, 15}, {0, 0, 0});
  expect_saved(layers, {0, 0, 5});
}

TEST(FillLayerBytes, HasNoNegativeWorkspace) {
  std::vector<Layer> layers = three_layers();
  (void)fill_layer_bytes(layers, {1, 1, 1}, {-5, 0, 0});
  EXPECT_EQ(layers[0].workspace_bytes, Bytes(0));
}

/// Consecutive layers, run once under a tracker.
class OneStep {
 public:
  explicit OneStep(model::Model m) : model_(std::move(m)), program_(model_, layers(), {}, {}, 1), batch_(row_batch()) {}

  LayerMemory& run() {
    const device::MemoryTracker::Scope scope(tracker_);
    memory_ = std::make_unique<LayerMemory>(model_.layers.size(), program_.parameters(), tracker_);
    before_ = tracker_.live();
    stage::Flight flight = program_.forward({}, batch_, 0, 0, true, memory_.get());
    after_forward_ = tracker_.live();
    memory_->begin_backward();
    (void)program_.backward(std::move(flight), {});
    memory_->end_backward();
    return *memory_;
  }
  /// Bytes that remain after the forward.
  std::int64_t kept() const { return (after_forward_ - before_).value; }

 private:
  std::vector<int> layers() const {
    std::vector<int> out(model_.layers.size());
    std::iota(out.begin(), out.end(), 0);
    return out;
  }

  model::Model model_;
  stage::StageProgram program_;
  std::vector<at::Tensor> batch_;
  device::MemoryTracker tracker_;
  std::unique_ptr<LayerMemory> memory_;
  Bytes before_;
  Bytes after_forward_;
};

/// Allocates `bytes` temporarily and returns x * weight.
model::LayerSpec hungry_layer(const std::string& name, std::int64_t bytes) {
  return hand_layer(name, 256, [bytes](const model::LayerCall& c) {
    (void)at::empty({bytes}, at::kByte);
    return std::vector<at::Tensor>{at::mul(c.inputs[0], c.parameters[0])};
  });
}

model::LayerSpec sum_layer() {
  return hand_layer("sum", 0, [](const model::LayerCall& c) { return std::vector<at::Tensor>{at::sum(c.inputs[0])}; });
}

// All bytes that remain after a forward belong to exactly one layer.
TEST(LayerMemory, GrowsLayerByLayerToWhatTheForwardKeeps) {
  OneStep step(scale_exp_sum());
  const LayerMemory& memory = step.run();
  EXPECT_EQ(std::accumulate(memory.growth().begin(), memory.growth().end(), std::int64_t{0}), step.kept());
  EXPECT_EQ(memory.growth()[0], 1024);  // 256 values of 4 bytes
}

// The second layer temporarily needs a million bytes besides its output, the others far less.
TEST(LayerMemory, GivesTheMomentaryBytesToTheLayerThatHeldThem) {
  OneStep step(row_of_layers({hungry_layer("a", 4), hungry_layer("b", 1'000'000), hungry_layer("c", 4), sum_layer()}));
  const LayerMemory& memory = step.run();
  EXPECT_LT(memory.transient()[0], 100'000);
  EXPECT_GT(memory.transient()[1], 990'000);
  EXPECT_LE(memory.transient()[1], 1'000'000);
  EXPECT_LT(memory.transient()[2], 100'000);
  EXPECT_GE(memory.peak(), 1'000'000 + 1024);  // besides the first layer's output
}

TEST(LayerMemory, PeakIsAtLeastWhatIsKept) {
  OneStep step(scale_exp_sum());
  const LayerMemory& memory = step.run();
  EXPECT_GE(memory.peak(), step.kept());
  for (const std::int64_t bytes : memory.transient()) EXPECT_GE(bytes, 0);
}

// A backward holds the gradient it read and the one for the previous layer, 256 values each.
TEST(LayerMemory, CountsWhatTheBackwardNeedsTemporarily) {
  OneStep step(row_of_layers({hungry_layer("a", 4), hungry_layer("b", 4), sum_layer()}));
  EXPECT_GE(step.run().transient()[1], 1024);
}

using Forward = std::function<std::vector<at::Tensor>(const model::LayerCall&)>;

model::LayerSpec layer(const std::string& name, std::vector<model::ParameterSpec> parameters, Forward forward) {
  model::LayerSpec out;
  out.name = name;
  out.parameters = std::move(parameters);
  out.forward = std::move(forward);
  return out;
}

model::ParameterSpec parameter(const std::string& name, std::vector<std::int64_t> shape, bool trainable = true) {
  model::ParameterSpec out;
  out.name = name;
  out.shape = std::move(shape);
  out.trainable = trainable;
  return out;
}

model::LayerSpec linear_layer(const std::string& name, const std::string& weight, std::int64_t in, std::int64_t out) {
  return layer(name, {parameter(weight, {out, in})}, [](const model::LayerCall& c) {
    return std::vector<at::Tensor>{at::linear(c.inputs[0], c.parameters[0])};
  });
}

model::LayerSpec conv_layer(const std::string& name, std::int64_t in, std::int64_t out) {
  return layer(name, {parameter(name + ".weight", {out, in, 3, 3})}, [](const model::LayerCall& c) {
    return std::vector<at::Tensor>{
        at::conv2d(c.inputs[0], c.parameters[0], {}, at::IntArrayRef{1, 1}, at::IntArrayRef{1, 1})};
  });
}

/// The model as one stage, with an input that needs no gradient.
struct ObservedModel {
  ObservedModel(model::Model m, std::vector<std::int64_t> shape)
      : model(std::move(m)), program(model, all(model), {}, {}, 1), input(at::ones(shape)) {}
  static std::vector<int> all(const model::Model& model) {
    std::vector<int> out(model.layers.size());
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  stage::Flight forward(stage::LayerObserver* observer) { return program.forward({}, {input}, 0, 0, true, observer); }
  std::vector<at::Tensor> gradients(stage::Flight flight) {
    (void)program.backward(std::move(flight), {});
    std::vector<at::Tensor> out;
    for (stage::Parameter& p : program.parameters()) {
      out.push_back(p.value.grad().clone());
      p.value.mutable_grad() = at::Tensor();
    }
    return out;
  }

  model::Model model;
  stage::StageProgram program;
  at::Tensor input;
};

TEST(SavedBytes, OfAConvolutionBlockAreThoseCountedByHand) {
  model::LayerSpec norm =
      layer("norm",
            {parameter("norm.weight", {32}), parameter("norm.bias", {32}), parameter("norm.mean", {32}, false),
             parameter("norm.variance", {32}, false)},
            [](const model::LayerCall& c) {
              return std::vector<at::Tensor>{at::batch_norm(c.inputs[0], c.parameters[0], c.parameters[1], c.buffers[0],
                                                            c.buffers[1], true, 0.1, 1e-5, false)};
            });
  model::LayerSpec relu =
      layer("relu", {}, [](const model::LayerCall& c) { return std::vector<at::Tensor>{at::relu(c.inputs[0])}; });
  model::LayerSpec pool = layer("pool", {}, [](const model::LayerCall& c) {
    return std::vector<at::Tensor>{at::max_pool2d(c.inputs[0], at::IntArrayRef{2, 2})};
  });
  ObservedModel whole(
      row_of_layers({conv_layer("conv1", 3, 32), norm, relu, conv_layer("conv2", 32, 32), pool, sum_layer()}),
      {32, 3, 32, 32});
  SavedBytes saved(whole.model.layers.size(), whole.program.parameters());
  const stage::Flight flight = whole.forward(&saved);
  const std::int64_t image = 32 * 3 * 32 * 32 * 4;      // the convolution's input
  const std::int64_t channels = 32 * 32 * 32 * 32 * 4;  // 32 samples, 32 channels, 32 x 32, 4 bytes
  EXPECT_EQ(image, 393'216);
  EXPECT_EQ(channels, 4'194'304);
  EXPECT_THAT(saved.by_layer(),
              ElementsAre(Bytes(image),
                          Bytes(channels + 4 * 32 * 4),  // input; batch mean and 1 / deviation, running statistics
                          Bytes(channels),               // its result
                          Bytes(0),                      // its input is the relu's result
                          Bytes(channels + 32 * 32 * 16 * 16 * 8),  // input and indices of 8 bytes
                          Bytes(0)));
  // The norm's result is read by the relu, which saves its own; the pool's by the sum, which saves none.
  EXPECT_THAT(saved.saved_outputs(), ElementsAre(ElementsAre(true), ElementsAre(false), ElementsAre(true),
                                                 ElementsAre(true), ElementsAre(false), ElementsAre(false)));
  // The relu's result counts once; the second convolution is listed as another user.
  const auto relus = std::find_if(saved.storages().begin(), saved.storages().end(),
                                  [](const SavedStorage& s) { return s.layer == 2; });
  ASSERT_NE(relus, saved.storages().end());
  EXPECT_EQ(*relus, (SavedStorage{Bytes(channels), 2, {3}}));
}

TEST(SavedBytes, LeaveOutAParameterThatIsSavedAsAView) {
  // The first linear's input needs no gradient, so its weight is not saved; the second saves its weight transposed.
  ObservedModel whole(
      row_of_layers({linear_layer("a", "a.weight", 5, 7), linear_layer("b", "b.weight", 7, 3), sum_layer()}), {4, 5});
  SavedBytes saved(3, whole.program.parameters());
  const stage::Flight flight = whole.forward(&saved);
  EXPECT_THAT(saved.by_layer(), ElementsAre(Bytes(4 * 5 * 4), Bytes(4 * 7 * 4), Bytes(0)));
}

TEST(SavedBytes, LeaveOutATiedParameterInAllItsLayers) {
  ObservedModel whole(
      row_of_layers({linear_layer("a", "shared", 6, 6), linear_layer("b", "shared", 6, 6), sum_layer()}), {2, 6});
  SavedBytes saved(3, whole.program.parameters());
  const stage::Flight flight = whole.forward(&saved);
  EXPECT_THAT(saved.by_layer(), ElementsAre(48_B, 48_B, 0_B));
}

TEST(SavedBytes, CountAWholeStorageOnceForAllItsViewsAndSavers) {
  // exp saves its result, and the next layer's multiplication saves two halves of it.
  model::LayerSpec exp = layer("exp", {parameter("w", {8})}, [](const model::LayerCall& c) {
    return std::vector<at::Tensor>{at::exp(c.inputs[0].add(c.parameters[0]))};
  });
  model::LayerSpec halves = layer("halves", {}, [](const model::LayerCall& c) {
    return std::vector<at::Tensor>{c.inputs[0].narrow(0, 0, 4).mul(c.inputs[0].narrow(0, 4, 4))};
  });
  model::LayerSpec again = halves;
  again.name = "again";
  ObservedModel whole(row_of_layers({exp, halves, again, sum_layer()}), {8});
  whole.model.layers[2].inputs = {{0, 0, -1}};  // both layers of halves read exp
  stage::StageProgram program(whole.model, ObservedModel::all(whole.model), {}, {}, 1);
  SavedBytes saved(4, program.parameters());
  const stage::Flight flight = program.forward({}, {whole.input}, 0, 0, true, &saved);
  ASSERT_EQ(saved.storages().size(), 1U);
  EXPECT_EQ(saved.storages()[0], (SavedStorage{32_B, 0, {1, 2}}));
  saved.reset();
  EXPECT_THAT(saved.storages(), IsEmpty());
}

TEST(SavedBytes, ChangeNoBitOfTheGradients) {
  ObservedModel whole(intake::build_model("convnet", {{"channels", "4"}, {"width", "8"}}), {});
  const auto batch =
      data::make_data_source("synthetic", whole.model, 1)->batch(0, 0, 1, 3, whole.program.data_inputs());
  const auto run = [&](stage::LayerObserver* observer) {
    return whole.gradients(whole.program.forward({}, batch, 0, 0, true, observer));
  };
  const std::vector<at::Tensor> before = run(nullptr);  // with the default engine, before SavedBytes
  std::vector<at::Tensor> counted;
  {
    SavedBytes saved(whole.model.layers.size(), whole.program.parameters());
    counted = run(&saved);
    EXPECT_GT(std::accumulate(saved.storages().begin(), saved.storages().end(), Bytes(0),
                              [](Bytes sum, const SavedStorage& s) { return sum + s.bytes; }),
              0_B);
  }
  const std::vector<at::Tensor> after = run(nullptr);
  ASSERT_EQ(counted.size(), before.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::equal(before[i], counted[i])) << i;
    EXPECT_TRUE(at::equal(before[i], after[i])) << i;
  }
}

TEST(SavedBytes, KeepNothingAliveOnceTheFlightIsGone) {
  device::MemoryTracker memory;
  const device::MemoryTracker::Scope counting(memory);
  model::LayerSpec exp = layer("exp", {parameter("w", {1000})}, [](const model::LayerCall& c) {
    return std::vector<at::Tensor>{at::exp(c.inputs[0].add(c.parameters[0]))};  // saves its own output
  });
  ObservedModel whole(row_of_layers({exp, sum_layer()}), {1000});
  SavedBytes saved(2, whole.program.parameters());
  const Bytes live = memory.live();
  {
    const stage::Flight flight = whole.forward(&saved);
    EXPECT_GT(memory.live(), live);
  }
  EXPECT_EQ(memory.live(), live);
  EXPECT_THAT(saved.by_layer(), ElementsAre(4000_B, 0_B));
}

TEST(SavedBytes, SeeNothingOutsideOfLayersAndOfOthers) {
  ObservedModel whole(
      row_of_layers({linear_layer("a", "a.weight", 5, 7), linear_layer("b", "b.weight", 7, 3), sum_layer()}), {4, 5});
  SavedBytes saved(3, whole.program.parameters());
  const stage::Flight unseen = whole.forward(nullptr);
  EXPECT_THAT(saved.storages(), IsEmpty());
  SavedBytes other(3, whole.program.parameters());
  const stage::Flight seen = whole.forward(&other);
  EXPECT_THAT(saved.storages(), IsEmpty());
  EXPECT_THAT(other.storages(), ::testing::SizeIs(2));
}

}  // namespace
}  // namespace stagecraft::profiler
