#include "costmodel/state_types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr auto kFloat32 = StateType::Float32;
constexpr auto kBfloat16 = StateType::Bfloat16;

TEST(StateTypes, HaveTheBytesOfTheirRecipes) {
  // Of ten values under Adam, by hand: the gradient, and moments with master values. A float32 parameter has no master.
  struct Recipe {
    StateTypes types;
    Bytes parameters, gradients, optimizer;
  };
  for (const Recipe& r : {Recipe{{}, 40_B, 40_B, 80_B},                                 // 4 + 4 + 8 = 16 a value
                          Recipe{{.parameters = kBfloat16}, 20_B, 40_B, 120_B},         // 2 + 4 + (4 + 8) = 18
                          Recipe{{kBfloat16, kBfloat16, kFloat32}, 20_B, 20_B, 120_B},  // 2 + 2 + (4 + 8) = 16
                          Recipe{{kBfloat16, kFloat32, kBfloat16}, 20_B, 40_B, 80_B},   // 2 + 4 + (4 + 4) = 14
                          Recipe{{.moments = kBfloat16}, 40_B, 40_B, 40_B}}) {          // 4 + 4 + 4 = 12
    EXPECT_EQ(gradient_bytes(r.types, r.parameters), r.gradients);
    EXPECT_EQ(parameter_bytes(r.types, r.gradients), r.parameters);
    EXPECT_EQ(optimizer_bytes(r.types, 2, r.parameters), r.optimizer);
  }
  // Plain SGD keeps nothing but master values.
  EXPECT_EQ(optimizer_bytes({}, 0, 40_B), 0_B);
  EXPECT_EQ(optimizer_bytes({.parameters = kBfloat16}, 0, 20_B), 40_B);
}

TEST(StateTypes, SayWhatAnUpdateMoves) {
  // Of one value under Adam. Float32: reads the gradient, reads and writes parameter and two moments: 7 x 4 bytes.
  EXPECT_EQ(update_bytes({}, 2, 4_B), 28_B);
  // With master values: these instead of the parameter, which is then written.
  EXPECT_EQ(update_bytes({.parameters = kBfloat16}, 2, 2_B), 30_B);
  EXPECT_EQ(update_bytes({kBfloat16, kBfloat16, kBfloat16}, 2, 2_B), Bytes(2 + 8 + 2 + 8));
}

TEST(StateTypes, AreExactForAnyBytesOfFloat32AndForTheLargestGraph) {
  EXPECT_EQ(gradient_bytes({}, 7_B), 7_B);
  EXPECT_EQ(optimizer_bytes({}, 3, 7_B), 21_B);
  constexpr Bytes kMost{std::int64_t{1} << 60};
  EXPECT_EQ(gradient_bytes({.parameters = kBfloat16}, kMost), kMost * 2);
}

TEST(StateTypes, RefuseWhatCannotBeComputed) {
  EXPECT_THAT([] { validate({.gradients = kBfloat16}, "bfloat16"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("gradients in bfloat16 need parameters in bfloat16")));
  for (const std::string dtype : {"float16", "float32"}) {
    EXPECT_THAT(
        [&] { validate({.parameters = kBfloat16}, dtype); },
        ThrowsMessage<std::invalid_argument>("parameters in bfloat16 need a computation in bfloat16, found " + dtype));
  }
  validate({.parameters = kBfloat16}, "bfloat16");
  validate({.parameters = kBfloat16}, "");
  validate({.moments = kBfloat16}, "float16");
  EXPECT_EQ(state_type("bfloat16"), kBfloat16);
  EXPECT_THAT([] { (void)state_type("half"); }, ThrowsMessage<std::invalid_argument>(HasSubstr("float32")));
}

}  // namespace
}  // namespace stagecraft
