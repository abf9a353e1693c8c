#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "executor/device/device.h"

namespace stagecraft {

/// Suites that need a GPU: without one they are skipped, or fail if REQUIRE_GPU is set. Tests may compute on the CPU
/// before they open the GPU.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device::prepare_device("cuda");
    const auto reason = device::no_gpu_reason();
    if (!reason) return;
    if (std::getenv("REQUIRE_GPU")) FAIL() << *reason;
    GTEST_SKIP() << *reason;
  }
};

}  // namespace stagecraft
