#include "profiler/kernels/tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "executor/device/device.h"

namespace stagecraft::profiler {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

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
    EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("no usable GPU"), HasSubstr("STAGECRAFT_WITH_CUDA=ON")));
  }
}

}  // namespace
}  // namespace stagecraft::profiler
