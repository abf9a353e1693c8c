#include "profiler/memory/layer_memory.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <utility>

#include "tests/profiler/row_of_layers.h"

namespace stagecraft::profiler {
namespace {

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

}  // namespace
}  // namespace stagecraft::profiler
