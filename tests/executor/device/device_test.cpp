#include "executor/device/device.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "costmodel/errors.h"

namespace stagecraft::device {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(OpenDevice, KnowsTheCpu) {
  EXPECT_EQ(open_device("cpu"), c10::Device(c10::kCPU));
  synchronize(c10::kCPU);  // must return
}

TEST(OpenDevice, ListsTheNamesItKnows) {
  EXPECT_THAT([] { (void)open_device("tpu"); },
              ThrowsMessage<std::invalid_argument>("unknown device \"tpu\", known are cpu, cuda"));
}

TEST(OpenDevice, RefusesAnInvalidNumber) {
  for (const char* name : {"cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999"}) {
    EXPECT_THAT([&] { (void)open_device(name); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("expected cuda or cuda:N with N from 0")))
        << name;
  }
}

TEST(OpenDevice, SaysWhyThereIsNoGpuAndWhatToDo) {
  if (!no_gpu_reason()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THAT([] { (void)open_device("cuda"); }, ThrowsMessage<DeviceError>(HasSubstr("--device cpu")));
  EXPECT_THAT([] { (void)gpu_properties(0); }, ThrowsMessage<DeviceError>(HasSubstr("--device cpu")));
}

TEST(AllowTf32, CoversMatrixProductsConvolutionsAndRecurrentLayers) {
  const at::Context& context = at::globalContext();
  EXPECT_TRUE(tf32_allowed()) << "LibTorch begins with what cuDNN computes allowed";
  for (const bool allowed : {false, true, false}) {
    allow_tf32(allowed);
    EXPECT_EQ(tf32_allowed(), allowed);
    EXPECT_EQ(context.allowTF32CuBLAS(), allowed);  // throws if half of its settings say otherwise
    EXPECT_EQ(context.allowTF32CuDNN(at::Float32Op::CONV), allowed);
    EXPECT_EQ(context.allowTF32CuDNN(at::Float32Op::RNN), allowed);
  }
}

}  // namespace
}  // namespace stagecraft::device
