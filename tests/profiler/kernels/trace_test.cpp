#include "profiler/kernels/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "costmodel/errors.h"
#include "executor/device/device.h"

namespace stagecraft::profiler {
namespace {

TEST(TagId, HasStepMicrobatchPhaseAndLayerFromTheTop) {
  // 63..52 step 2, 51..40 microbatch 3, 39..36 phase backward (2), 35..0 layer 5.
  EXPECT_EQ(encode({.layer = 5, .phase = Phase::Backward, .microbatch = 3, .step = 2}), 0x002'003'2'000000005U);
}

TEST(TagId, RoundTripsTheExtremesOfEachField) {
  for (const std::int64_t layer : {std::int64_t{0}, (std::int64_t{1} << 36) - 1}) {
    for (const Phase phase : {Phase::Forward, Phase::Loss}) {
      for (const int count : {0, 4095}) {
        const Tag tag{layer, phase, count, 4095 - count};
        EXPECT_EQ(decode_tag(encode(tag)), tag);
      }
    }
  }
}

TEST(TagId, CountsStepsModulo4096) { EXPECT_EQ(decode_tag(encode({1, Phase::Forward, 0, 4098})).step, 2); }

TEST(TagId, IsZeroForNobody) { EXPECT_EQ(encode({.layer = 7, .phase = Phase::None, .step = 3}), 0U); }

TEST(TagId, OfAnUnknownPhaseIsNobodys) { EXPECT_EQ(decode_tag(0x001'001'F'000000001U), Tag{}); }

TEST(TagId, RefusesWhatDoesNotFit) {
  EXPECT_THROW((void)encode({-1, Phase::Forward, 0, 0}), std::invalid_argument);
  EXPECT_THROW((void)encode({std::int64_t{1} << 36, Phase::Forward, 0, 0}), std::invalid_argument);
  EXPECT_THROW((void)encode({0, Phase::Forward, -1, 0}), std::invalid_argument);
  EXPECT_THROW((void)encode({0, Phase::Forward, 0, -1}), std::invalid_argument);
}

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
