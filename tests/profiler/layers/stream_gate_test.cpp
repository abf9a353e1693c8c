#include "profiler/layers/isolated.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "costmodel/errors.h"

namespace stagecraft::profiler {
namespace {

using ::testing::HasSubstr;

struct Enqueued {
  cudaStream_t stream;
  cudaHostFn_t function;
  void* data;
};
/// What the stream was given. Nothing runs until a test calls it.
std::vector<Enqueued> enqueued;
cudaError_t answer = cudaSuccess;
int place = 0;

/// A kind of device whose only stream is `place`.
class Guard : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {c10::kPrivateUse1, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void* getStreamNativeHandle(const c10::Stream) const override { return &place; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

// Taken instead of the CUDA runtime's: the program's own names come first.
extern "C" cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* userData) {
  if (answer == cudaSuccess) enqueued.push_back({stream, fn, userData});
  return answer;
}

namespace {

class AStreamGate : public ::testing::Test {
 protected:
  void SetUp() override {
    enqueued.clear();
    answer = cudaSuccess;
  }
  void TearDown() override {
    for (const Enqueued& call : std::exchange(enqueued, {})) call.function(call.data);  // which gives its memory back
  }
  static std::unique_ptr<StreamGate> gate() { return make_stream_gate({c10::kPrivateUse1, 0}); }
};

TEST_F(AStreamGate, HoldsTheDevicesStream) {
  gate()->close();
  ASSERT_EQ(enqueued.size(), 1U);
  EXPECT_EQ(enqueued.front().stream, reinterpret_cast<cudaStream_t>(&place));
}

TEST_F(AStreamGate, IsDestroyedThoughTheStreamNeverReachesIt) { gate()->close(); }

TEST_F(AStreamGate, IsReachedAfterItWasDestroyed) {
  {
    const auto twice = gate();
    twice->close();
    twice->close();
  }
  for (const Enqueued& call : std::exchange(enqueued, {})) call.function(call.data);
}

TEST_F(AStreamGate, SaysWhyTheStreamRefused) {
  const auto closed = gate();
  answer = cudaErrorIllegalAddress;
  try {
    closed->close();
    FAIL() << "closed a stream that refuses";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cudaLaunchHostFunc failed with cudaErrorIllegalAddress"));
  }
}

}  // namespace
}  // namespace stagecraft::profiler
