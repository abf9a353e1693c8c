// One rank of a run over NCCL on a GPU, started by nccl_gpu_test: nccl_rank_program CASE. All ranks share the first
// GPU.
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <span>
#include <vector>

#include "executor/channel/channel_gloo.h"
#include "executor/channel/nccl/channel_nccl.h"
#include "executor/device/device.h"
#include "executor/launch/launch.h"
#include "executor/launch/rendezvous.h"
#include "executor/meeting/launch_info.h"
#include "profiler/kernels/trace.h"
#include "tests/executor/channel/nccl_suite.h"

namespace stagecraft {
namespace {

using std::chrono::seconds;

/// Whether an NCCL kernel and a compute kernel ran at the same time.
bool overlap(const profiler::KernelTrace& trace) {
  std::vector<const profiler::DeviceActivity*> transfers, others;
  for (const profiler::DeviceActivity& activity : trace.activities) {
    if (activity.name < 0) continue;
    const std::string& name = trace.names[static_cast<std::size_t>(activity.name)];
    (name.find("nccl") == std::string::npos ? others : transfers).push_back(&activity);
  }
  std::printf("%zu kernels of NCCL, %zu others\n", transfers.size(), others.size());
  return std::ranges::any_of(transfers, [&](const profiler::DeviceActivity* transfer) {
    return std::ranges::any_of(others, [&](const profiler::DeviceActivity* other) {
      return transfer->begin_ns < other->end_ns && other->begin_ns < transfer->end_ns;
    });
  });
}

void expect_overlap(channel::Channel& channel, c10::Device device, profiler::KernelTracer& tracer) {
  const channel::TensorSpec spec{{1 << 24}, at::kFloat};
  const auto options = at::TensorOptions(at::kFloat).device(device);
  const at::Tensor factor = at::rand({2048, 2048}, options);
  const at::Tensor values = at::rand(spec.shape, options);
  at::Tensor product = at::matmul(factor, factor).mul(1e-3);  // a kernel's first launch would wait for the transfers
  device::synchronize(device);
  channel.barrier();
  tracer.start();
  const int peer = 1 - channel.rank();
  const auto receiving = channel.receive(spec, peer, 0);
  const auto sending = channel.send(values, peer, 0);
  for (int i = 0; i < 100; ++i) product = at::matmul(product, factor).mul(1e-3);
  (void)receiving->wait();
  sending->wait();
  device::synchronize(device);
  tracer.stop();
  EXPECT_TRUE(overlap(tracer.take()));
  channel.barrier();
}

/// Prints what a message of two tensors costs the thread that enqueues a step: together, and one by one.
void measure_host_time(channel::Channel& channel, c10::Device device) {
  constexpr int kMessages = 500;
  const channel::TensorSpec spec{{1 << 14}, at::kFloat};
  const std::vector<channel::TensorSpec> specs{spec, spec};
  const at::Tensor values = at::rand(spec.shape, at::TensorOptions(at::kFloat).device(device));
  const std::vector<at::Tensor> tensors{values, values};
  const std::vector<int> tags{0, 1};
  for (const std::size_t at_a_time : {2U, 1U}) {
    std::vector<double> microseconds;
    for (int message = 0; message < kMessages; ++message) {
      std::vector<std::unique_ptr<channel::Sending>> sends;
      std::vector<std::unique_ptr<channel::Receiving>> receives;
      const auto begin = std::chrono::steady_clock::now();
      for (std::size_t i = 0; i < tensors.size(); i += at_a_time) {
        const std::span<const int> own_tags(tags.data() + i, at_a_time);
        if (channel.rank() == 0) channel.send_message({tensors.data() + i, at_a_time}, 1, own_tags, sends);
        if (channel.rank() == 1) channel.receive_message({specs.data() + i, at_a_time}, 0, own_tags, receives);
      }
      microseconds.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
      for (const auto& sending : sends) sending->wait();
      for (const auto& receiving : receives) (void)receiving->wait();
      if (message % 50 == 0) device::synchronize(device);
    }
    std::ranges::sort(microseconds);
    std::printf("rank %d: host time to %s two tensors %s: median %.1f us, 90th percentile %.1f us\n", channel.rank(),
                channel.rank() == 0 ? "send" : "receive", at_a_time == 2 ? "together" : "one by one",
                microseconds[kMessages / 2], microseconds[kMessages * 9 / 10]);
  }
  device::synchronize(device);
  channel.barrier();
}

int run(const std::string& name) {
  device::prepare_device("cuda:0");
  std::unique_ptr<profiler::KernelTracer> tracer;
  if (name == "overlap") tracer = profiler::make_cupti_tracer();  // before the first context
  const meeting::LaunchInfo launch = *launch::launch_from_environment(launch::process_environment());
  const auto meeting = launch::join(launch, seconds(30));
  std::unique_ptr<channel::Channel> channel;
  try {
    channel::share_gpu(launch.rank);
    const c10::Device device = device::open_device("cuda:0");
    const auto deadline = name == "late" ? seconds(3) : seconds(60);
    channel =
        channel::make_nccl_channel(launch, all_to_all(launch.ranks), channel::make_gloo_channel(launch, seconds(60)),
                                   device, deadline, {.deterministic = name == "deterministic"});
    const device::OwnStream stream(device);  // as in a run, after the channel
    if (name == "deliveries") expect_deliveries(*channel, device);
    if (name == "sums" || name == "deterministic") expect_sums_of_all(*channel, device);
    if (name == "streams") expect_ordered_streams(*channel, device);
    if (name == "overlap") expect_overlap(*channel, device, *tracer);
    if (name == "host-time" && launch.rank < 2) measure_host_time(*channel, device);
    if (name == "late") {
      const std::string error = error_of([&] {
        if (launch.rank == 1) (void)channel->receive({{4}, at::kFloat}, 0, 0)->wait();
        // No rank sends it: the watching threads end the run.
        const auto end = std::chrono::steady_clock::now() + seconds(30);
        while (std::chrono::steady_clock::now() < end) channel->barrier();
      });
      EXPECT_NE(error.find("edge 0 1"), std::string::npos) << error;
      device::synchronize(device);
    }
    meeting->leave();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", launch.rank, error.what());
    meeting->fail(error.what());
    return 1;
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace
}  // namespace stagecraft

int main(int count, char** arguments) {
  ::testing::InitGoogleTest(&count, arguments);
  return stagecraft::run(arguments[1]);
}
