#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/places.h"
#include "tests/support/run_command.h"

// LibTorch looks for its CUDA libraries once in a process, so each case is a process of its own. The libraries are the
// real ones, which load without a GPU; tests/support/fakes/fake_gpus.cpp counts one where a case needs it.

namespace stagecraft::device {
namespace {

using testing::CommandFolder;
using ::testing::HasSubstr;
using testing::Outcome;

const std::string kOneGpu = "FAKE_GPUS=1 LD_PRELOAD='" FAKE_GPUS_LIBRARY "' ";

class DeviceOrder : public ::testing::Test {
 protected:
  void SetUp() override {
    if (steps("load").find("cannot load") != std::string::npos) GTEST_SKIP() << "LibTorch has no CUDA libraries";
  }
  /// What device_order_program printed.
  [[nodiscard]] std::string steps(const std::string& of, const std::string& settings = "") const {
    const Outcome o = folder_.run(settings + " device_order_program " + of);
    EXPECT_EQ(o.status, 0) << o.err;
    return o.out;
  }
  CommandFolder folder_;
};

TEST_F(DeviceOrder, LibrariesLoadedFirstStayUsable) {
  EXPECT_EQ(steps("load convolve backward load"), "usable\nusable\n");
}

TEST_F(DeviceOrder, SaysThatTheCpuComputedBeforeTheLibrariesWereLoaded) {
  for (const char* operation : {"convolve", "backward"}) {
    const std::string out = steps(std::string(operation) + " load");
    EXPECT_THAT(out, HasSubstr("before it loaded LibTorch's CUDA libraries")) << operation;
    EXPECT_THAT(out, HasSubstr("prepare_device")) << operation;
  }
  EXPECT_EQ(steps("add load"), "usable\n") << "asks for no CUDA";
}

TEST_F(DeviceOrder, AGpuPreparedFirstCanBeOpenedAfterWorkOnTheCpu) {
  EXPECT_EQ(steps("prepare convolve backward open", kOneGpu),
            "device \"cuda:99\" does not exist; this machine has cuda:0 to cuda:0\n");
}

TEST_F(DeviceOrder, AGpuOpenedAfterWorkOnTheCpuSaysWhyItCannotBeUsed) {
  EXPECT_THAT(steps("convolve open", kOneGpu), HasSubstr("before it loaded LibTorch's CUDA libraries"));
}

TEST_F(DeviceOrder, AsksForAQueueOfEachStreamUnlessTheUserChose) {
  EXPECT_EQ(steps("queues prepare queues", "env -u CUDA_DEVICE_MAX_CONNECTIONS"), "unset\n32\n");
  EXPECT_EQ(steps("prepare queues", "CUDA_DEVICE_MAX_CONNECTIONS=4"), "4\n");
  EXPECT_EQ(steps("prepare-cpu queues", "env -u CUDA_DEVICE_MAX_CONNECTIONS"), "unset\n");
}

/// A TorchScript model whose reader runs its convolutions on the CPU to learn shapes.
const std::string kConvolutions =
    source_folder() +
    "/tests/golden/torchscript/cnn_traced.pt --input x=float32[3,8,8] --input target=int64[] --input-range "
    "target=0..4 ";

TEST_F(DeviceOrder, ProfilesModelsWhoseReaderComputes) {
  const Outcome o =
      folder_.run(kOneGpu + "stagecraft-profile " + kConvolutions + "--structure --device cuda:99 --clock events");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(o.err,
            "stagecraft-profile: device \"cuda:99\" does not exist; this machine has cuda:0 to cuda:0 [SC4002]\n");
}

TEST_F(DeviceOrder, RunsModelsWhoseReaderComputes) {
  const Outcome made = folder_.run("stagecraft-profile " + kConvolutions +
                                   "--max-seconds 0.01 --warmup 1 --concurrent 1 --accept-untrusted -o graph.json && "
                                   "stagecraft-plan graph.json --accept-untrusted -n 1 -o plan.json");
  ASSERT_EQ(made.status, 0) << made.err;
  const Outcome o = folder_.run(kOneGpu + "stagecraft-run plan.json --device cuda:99 --channel local");
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("device \"cuda:99\" does not exist; this machine has cuda:0 to cuda:0 [SC4002]\n"));
}

}  // namespace
}  // namespace stagecraft::device
