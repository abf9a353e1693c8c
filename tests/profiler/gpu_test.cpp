#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "costmodel/errors.h"
#include "executor/data/prefetch.h"
#include "profiler/layers/isolated.h"
#include "profiler/profile.h"
#include "profiler/subject/subject.h"
#include "profiler/subject/watch.h"
#include "tests/profiler/small_models.h"
#include "tests/support/gpu.h"

namespace stagecraft::profiler {
namespace {

using ::testing::HasSubstr;

/// One tracer for all tests.
class GpuProfile : public GpuTest {
 protected:
  static void SetUpTestSuite() {
    device::prepare_device("cuda");
    if (!device::no_gpu_reason()) tracer = make_late_tracer("cupti", make_cupti_tracer);
  }
  static void TearDownTestSuite() { tracer.reset(); }
  static ProfileOptions options(double seconds = 2) {
    ProfileOptions out;
    out.microbatch_samples = 2;
    out.placement.device = device::open_device("cuda");
    out.rule.most_seconds = seconds;
    return out;
  }
  static Profile profile(const model::Model& model, const ProfileOptions& o, KernelTracer* with = tracer.get()) {
    return profile_model(model, *data::make_data_source("synthetic", model, 1), o, {}, with);
  }
  static std::int64_t parts_ns(const Graph& graph) {
    std::int64_t sum = graph.quality->data_wait_ns + graph.quality->unattributed_ns;
    for (const Layer& layer : graph.layers) {
      for (const auto* share : {&layer.forward_share, &layer.backward_share, &layer.update_share})
        sum += *share ? (*share)->share_ns : 0;
    }
    return sum;
  }
  static inline std::unique_ptr<KernelTracer> tracer;
};

TEST_F(GpuProfile, GivesEveryKernelOfEveryModelToALayer) {
  for (const Small& small : small_models()) {
    const Profile out = profile(intake::build_model(small.name, small.set), options(0.5));
    const ProfileQuality& quality = *out.graph.quality;
    EXPECT_TRUE(quality.trusted) << small.name << ": " << (quality.reasons.empty() ? "" : quality.reasons.front());
    EXPECT_GT(quality.work, 0) << small.name;
    EXPECT_EQ(quality.work_attributed, quality.work) << small.name;
    EXPECT_EQ(quality.disagreements, 0) << small.name;
    EXPECT_EQ(parts_ns(out.graph), quality.watched_ns) << small.name;
    for (const Layer& layer : out.graph.layers) {
      if (layer.parameter_bytes > Bytes(0)) {
        EXPECT_GT(layer.backward_share->busy_ns, 0) << small.name << " " << layer.id;
        ASSERT_TRUE(layer.accumulation) << small.name << " " << layer.id;
        EXPECT_GT(layer.accumulation->median, Seconds(0)) << small.name << " " << layer.id;
      }
    }
  }
}

TEST_F(GpuProfile, AddsUpToAnUnprofiledStep) {
  ProfileOptions o = options(5);
  o.microbatch_samples = 64;
  EXPECT_LT(std::abs(profile(intake::build_model("resnet18", {}), o).closure()), 0.03);
}

TEST_F(GpuProfile, MeasuresBetweenLayersByEventsAsWell) {
  const Profile out = profile(intake::build_model("convnet", {}), options(), nullptr);
  EXPECT_EQ(out.graph.quality->clock, "events");
  EXPECT_EQ(parts_ns(out.graph), out.graph.quality->watched_ns);
  for (const Layer& layer : out.graph.layers) {
    if (!is_input(layer)) { EXPECT_GT(layer.forward.median, Seconds(0)) << layer.id; }
  }
}

TEST_F(GpuProfile, RunsLayersAloneBehindAGate) {
  ProfileOptions o = options(1);
  o.isolated = true;
  const Profile out = profile(intake::build_model("convnet", {}), o);
  for (const Layer& layer : out.graph.layers) {
    if (!is_input(layer)) { EXPECT_GT(layer.forward_share->isolated->median, Seconds(0)) << layer.id; }
  }
}

TEST_F(GpuProfile, ComputesInHalfPrecision) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    ProfileOptions o = options(0.5);
    o.placement.compute = type;
    const Small gpt = small_models().back();
    const Graph graph = profile(intake::build_model(gpt.name, gpt.set), o).graph;
    EXPECT_TRUE(graph.quality->trusted);
    bool half = false;
    for (const Layer& layer : graph.layers)
      half = half || (!is_input(layer) && layer.outputs.at(0).dtype == graph.dtype);
    EXPECT_TRUE(half) << graph.dtype;
  }
}

TEST_F(GpuProfile, SaysWhetherItAllowedTf32) {
  for (const bool allowed : {true, false}) {
    ProfileOptions o = options(0.5);
    o.placement.device = device::open_device("cuda", allowed);
    const Small first = small_models().front();
    EXPECT_EQ(profile(intake::build_model(first.name, first.set), o).graph.allow_tf32, allowed);
  }
}

TEST_F(GpuProfile, AddsUpToTheAllocatorsPeak) {
  ProfileOptions o = options(0.5);
  o.microbatch_samples = 32;
  const ProfileQuality quality = *profile(intake::build_model("resnet18", {}), o).graph.quality;
  EXPECT_NEAR(
      static_cast<double>(quality.summed_peak_bytes.value) / static_cast<double>(quality.allocator_peak_bytes.value), 1,
      0.02);
}

TEST_F(GpuProfile, GivesTheLossOfTheCpu) {
  for (const Small& small : small_models()) {
    const model::Model model = intake::build_model(small.name, small.set);
    const Whole whole(model);
    const auto loss = [&](stage::ComputePlace placement) {
      return layer_outputs(model, whole.batch, 1, placement).back().front().item<double>();
    };
    const double cpu = loss({});
    // Dropout's random numbers differ from the CPU's by design; the loss of an untrained model hardly depends on them.
    EXPECT_NEAR(loss({device::open_device("cuda"), at::kFloat}), cpu, 0.1 * std::abs(cpu)) << small.name;
  }
}

TEST_F(GpuProfile, UploadsDenseBatchesFromPinnedMemory) {
  const c10::Device device = device::open_device("cuda");
  const at::Tensor wide = at::arange(12, at::kFloat).view({3, 4});
  const auto ready = data::ready_to_upload({wide.slice(1, 0, 2), wide.t()}, device);
  for (const at::Tensor& tensor : ready) {
    EXPECT_TRUE(tensor.is_pinned());
    EXPECT_TRUE(tensor.is_non_overlapping_and_dense());
  }
  EXPECT_TRUE(at::equal(ready[0].to(device, /*non_blocking=*/true).cpu(), wide.slice(1, 0, 2)));
  EXPECT_TRUE(at::equal(ready[1].to(device, /*non_blocking=*/true).cpu(), wide.t()));
}

TEST_F(GpuProfile, NamesItselfToASecondSubscriber) {
  tracer->start();
  tracer->stop();
  try {
    (void)make_cupti_tracer();
    FAIL() << "two tracers at once";
  } catch (const DeviceError& error) { EXPECT_THAT(error.what(), HasSubstr("stagecraft")); }
}

TEST_F(GpuProfile, OpensAGateByItselfWhenNobodyDoes) {
  const c10::Device device = device::open_device("cuda");
  const auto gate = make_stream_gate(device);
  gate->close();
  device::synchronize(device);  // returns once the gate times out
}

}  // namespace
}  // namespace stagecraft::profiler
