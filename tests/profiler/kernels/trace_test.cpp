#include "profiler/kernels/trace.h"

#include <gtest/gtest.h>

#include <stdexcept>

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

}  // namespace
}  // namespace stagecraft::profiler
