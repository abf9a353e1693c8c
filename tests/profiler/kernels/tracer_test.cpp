#include "profiler/kernels/tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "executor/device/device.h"

namespace stagecraft::profiler {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Counts what reaches it.
struct CountingTracer : KernelTracer {
  explicit CountingTracer(int& c) : calls(c) {}
  std::string name() const override { return "counting"; }
  void push(std::uint64_t) override { ++calls; }
  void pop() override { ++calls; }
  std::int64_t now_ns() const override { return ++calls; }
  std::uint32_t thread() const override { return static_cast<std::uint32_t>(++calls); }
  void start() override { ++calls; }
  void stop() override { ++calls; }
  KernelTrace take() override {
    ++calls;
    return {};
  }
  int& calls;
};

TEST(LateTracer, DoesNotExistBeforeItRecords) {
  int made = 0;
  int calls = 0;
  const auto tracer = make_late_tracer("late", [&] {
    ++made;
    return std::make_unique<CountingTracer>(calls);
  });
  EXPECT_EQ(tracer->name(), "late");
  tracer->stop();
  EXPECT_EQ(made, 0);
  tracer->push(1);
  tracer->pop();
  tracer->start();
  tracer->stop();
  (void)tracer->take();
  EXPECT_EQ(tracer->now_ns(), 6);
  EXPECT_EQ(tracer->thread(), 7U);
  EXPECT_EQ(made, 1);
}

TEST(CuptiRefusal, NamesTheToolThatUsesCupti) {
  EXPECT_THAT(cupti_refusal("cuptiSubscribe_v2", 39, "CUPTI for Kineto", false),
              AllOf(HasSubstr("cuptiSubscribe_v2 failed with status 39"), HasSubstr("\"CUPTI for Kineto\" uses CUPTI"),
                    HasSubstr("--clock events")));
  EXPECT_THAT(cupti_refusal("cuptiSubscribe_v2", 39, "", false), HasSubstr("another tool uses CUPTI"));
}

TEST(CuptiRefusal, SaysHowToGetPermission) {
  EXPECT_THAT(cupti_refusal("cuptiActivityEnable", 35, "", true),
              AllOf(HasSubstr("RmProfilingAdminOnly is 1"), HasSubstr("NVreg_RestrictProfilingToAdminUsers=0")));
  EXPECT_THAT(cupti_refusal("cuptiActivityEnable", 40, "", false),
              AllOf(HasSubstr("give the container CAP_PERFMON"), Not(HasSubstr("RmProfilingAdminOnly"))));
}

TEST(CuptiRefusal, OffersEventsWhereADeviceCannotBeTraced) {
  for (const int status : {33, 41, 43, 45}) {
    EXPECT_THAT(cupti_refusal("cuptiActivityEnable", status, "", false), HasSubstr("--clock events")) << status;
  }
}

TEST(CuptiTracer, SaysWhatIsMissingWithoutAGpu) {
  const auto reason = device::no_gpu_reason();
  if (!reason) GTEST_SKIP() << "this machine has a GPU";
  try {
    (void)make_cupti_tracer();
    FAIL() << "a tracer without a GPU";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), ::testing::AnyOf(HasSubstr("no usable GPU"), HasSubstr("STAGECRAFT_WITH_CUDA=ON")));
  }
}

}  // namespace
}  // namespace stagecraft::profiler
